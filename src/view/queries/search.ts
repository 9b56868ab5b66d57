/** Full text search. */
import { zip } from "../../arrays.ts";
import { UserError } from "../../errors.ts";
import { filterCondition, searchTerms, searchWords } from "../filter/to-sql.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { loadRows, toRows, whereOf } from "./episode-list.ts";
import { type Given, required, wholeNumberOf } from "./parameters.ts";

export interface SearchQuery {
  /** Words; all must occur, in this order and next to each other if in double quotes. */
  q: string;
  filter?: string;
  /** Default 50, at most 200. */
  limit?: string;
  offset?: string;
}

export type SearchResults = ReturnType<typeof search>;

/** @throws UserError if there is nothing to search */
export function search(database: IndexDatabase, query: Given<SearchQuery>) {
  const words = required("q", query.q);
  const terms = searchTerms(words);
  if (terms === undefined) throw new UserError("a text search needs a letter or a digit");
  const limit = wholeNumberOf("limit", query.limit, 50, 200);
  const offset = wholeNumberOf("offset", query.offset, 0);
  const { where, values, matching } = whereOf(database, filterCondition(query.filter ?? ""));
  // One query returns both the total number of matches and the rows of the page. Without rows, it returns one row with `row` null.
  const found = database
    .prepare(
      `WITH found AS MATERIALIZED (
         SELECT row, step, kind, place FROM trajectories
         WHERE ${where} AND episode IN (SELECT rowid FROM texts WHERE texts MATCH ?)
       )
       SELECT total, row FROM (SELECT count(*) AS total FROM found)
       LEFT JOIN (SELECT row FROM found ORDER BY step DESC, kind DESC, place LIMIT ${limit} OFFSET ${offset})`,
    )
    .all([...values, terms]) as { total: number; row: number | null }[];
  const rows = loadRows(
    database,
    found.flatMap(({ row }) => row ?? []),
  );
  const textOf = database.prepare("SELECT text FROM texts WHERE rowid = ?");
  const hits = zip(rows, toRows(database, rows, matching)).map(([indexed, episode]) => {
    const { text } = textOf.get([indexed.episode]) as { text: string };
    return { episode, ...snippetOf(text, words) };
  });
  return { total: found[0]?.total ?? 0, hits };
}

/** Characters before and after a match. */
const around = { before: 60, after: 120 };

/** The text around the first of the words. */
function snippetOf(text: string, words: string) {
  const found = searchWords(words).exec(text);
  const at = found?.index ?? 0;
  const end = at + (found?.[0].length ?? 0);
  const from = at <= around.before ? 0 : text.indexOf(" ", at - around.before) + 1 || at;
  const start = Math.min(from, at);
  const head = start > 0 ? "..." : "";
  const tail = text.length > end + around.after ? "..." : "";
  const snippet = head + text.slice(start, end + around.after) + tail;
  const match: [start: number, end: number] | null = found
    ? [head.length + at - start, head.length + end - start]
    : null;
  return { snippet, match };
}
