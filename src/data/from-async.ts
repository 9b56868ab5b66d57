/** Creates a dataset from rows that somebody's client fetches: Langfuse, LangSmith, Braintrust, a database. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { HoneError, UserError, userFrames } from "../base/errors.ts";
import { makeFolder, writeWhole } from "../base/files.ts";
import { pendingResume } from "../base/import-module.ts";
import type { Dataset } from "./dataset.ts";
import { fileDataset, idText, openJsonl } from "./files.ts";

/**
 * Fetches all rows now. A run keeps them in its folder (`data/{name}.jsonl`), and a run that is continued with `--resume`
 * reads them from there, so that it does not depend on what the service has by then.
 *
 * @param source a function is not called by a run that is continued
 * @param toRow what is trained on and kept: leave out personal data here. Undefined or null skips an item, which is counted.
 * @throws UserError if there are no rows, or a row is not an object
 *
 * @example
 * const langfuse = new LangfuseClient();
 * const train = await fromAsync("support", async () => (await langfuse.dataset.get("support")).items, (item) => ({
 *   id: item.id, question: item.input.question, answer: item.expectedOutput,
 * }));
 */
export async function fromAsync<Item, Row extends object>(
  name: string,
  source: Source<Item> | (() => Source<Item> | Promise<Source<Item>>),
  toRow: (item: Item) => Row | undefined | null,
): Promise<Dataset<Row>> {
  if (!/^[\w.-]+$/.test(name)) throw new UserError(`the dataset's name ${JSON.stringify(name)} is not a file name`);
  const kept = (folder: string) => join(folder, "data", `${name}.jsonl`);
  const resumed = pendingResume();
  const earlier = resumed === undefined ? undefined : kept(resumed);
  const rows: Row[] = [];
  const notes: string[] = [];
  if (earlier !== undefined && existsSync(earlier)) {
    const stored = openJsonl(earlier);
    for (let index = 0; index < stored.size; index++) rows.push(stored.row(index) as Row);
  } else {
    let skipped = 0;
    for await (const { item, index } of fetched(name, source)) {
      const row = converted(name, index, item, toRow);
      if (row === undefined || row === null) skipped++;
      else rows.push(checked(name, rows.length, row));
    }
    if (skipped > 0) notes.push(`${name}: skipped ${skipped} items`);
  }
  const dataset = fileDataset(name, {
    size: rows.length,
    row: (index) => rows[index] as Record<string, unknown>,
    origin: (index) => `${name}[${index}]`,
    id: (index) => idText((rows[index] as { id?: unknown }).id),
    notes,
  });
  return {
    ...(dataset as unknown as Dataset<Row>),
    keep(folder) {
      const file = kept(folder);
      if (existsSync(file)) return;
      makeFolder(join(folder, "data"));
      writeWhole(
        file,
        rows.map((row) => `${JSON.stringify(row)}\n`),
      );
    },
  };
}

type Source<Item> = AsyncIterable<Item> | Iterable<Item>;

/** The items, and the error of a client as one of its dataset: stacks of packages do not say whose it is. */
async function* fetched<Item>(name: string, source: Source<Item> | (() => Source<Item> | Promise<Source<Item>>)) {
  let index = 0;
  const say = () => process.stderr.write(`${name}: fetching the rows, ${index} items so far\n`);
  const timer = setInterval(say, 10_000).unref();
  try {
    for await (const item of typeof source === "function" ? await source() : source) yield { item, index: index++ };
  } catch (cause) {
    if (cause instanceof HoneError) throw cause;
    throw new UserError(`${name}: fetching the rows failed after ${index} items: ${describe(cause)}`, { cause });
  } finally {
    clearInterval(timer);
  }
}

/** The item is named by its number and id, because it may have personal data. */
function converted<Item, Row>(name: string, index: number, item: Item, toRow: (item: Item) => Row): Row {
  try {
    return toRow(item);
  } catch (cause) {
    if (cause instanceof HoneError) throw cause;
    const id = idText((item as { id?: unknown } | null)?.id);
    const which = `item ${index}${id === undefined ? "" : ` (${id})`}`;
    throw new UserError(`${name}: toRow failed for ${which}: ${describe(cause)}`, {
      details: cause instanceof Error ? userFrames(cause.stack) : undefined,
      hint: "return undefined for items that cannot be rows: they are skipped and counted",
      cause,
    });
  }
}

const describe = (error: unknown) => (error instanceof Error ? `${error.name}: ${error.message}` : String(error));

/** A row as it is read from the run's folder. */
function checked<Row extends object>(name: string, index: number, row: Row): Row {
  if (typeof row === "object" && !Array.isArray(row)) return JSON.parse(JSON.stringify(row)) as Row;
  throw new UserError(`${name}[${index}]: toRow returned ${JSON.stringify(row)?.slice(0, 60)} instead of an object`);
}
