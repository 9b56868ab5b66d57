/** What the terminal shows, from the same index and filter as the page. */
import { openPieces } from "../../tracking/run-folder/pieces.ts";
import { filterCondition } from "../filter/to-sql.ts";
import { defaultCache } from "../index/open-database.ts";
import { openRunIndex } from "../index/run-index.ts";
import { anatomy, windowOf } from "../queries/anatomy.ts";
import { readOne } from "../queries/episode.ts";
import { rowsWhere, whereOf } from "../queries/episode-list.ts";
import type { BrowserContent } from "./browser.ts";
import { fileRows, runHead, type StepFile, timeRows } from "./tables.ts";

/**
 * Indexes the whole run first.
 * @param filter "": all episodes
 * @throws FilterError
 */
export async function openContent(
  run: string,
  name: string,
  filter: string,
  cache: string = defaultCache(),
): Promise<BrowserContent & { close(): void }> {
  const condition = filterCondition(filter);
  const index = openRunIndex(run, cache);
  while (!(await index.refresh(1000)));
  const { database } = index;
  const { where, values, matching } = whereOf(database, condition);
  return {
    head: (width) => runHead(database, name, Math.min(width, 100)),
    files: database
      .prepare(`SELECT DISTINCT step, kind FROM trajectories WHERE ${where} ORDER BY step, kind`)
      .all([...values]) as StepFile[],
    fileRow: fileRows(database),
    times: ({ step, kind }) =>
      windowOf(database, kind, step) === undefined
        ? []
        : timeRows(anatomy(database, run, { step: String(step), kind })),
    episodes: ({ step, kind }) =>
      rowsWhere(database, `${where} AND step = ? AND kind = ? ORDER BY place`, [...values, step, kind], matching),
    read: ({ key }) => readOne(database, run, key).kept,
    pieces: openPieces(run),
    close: index.close,
  };
}
