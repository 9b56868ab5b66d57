/** What the readers of all file formats share: rows with origins become a dataset with ids. */
import { UserError } from "../errors.ts";
import type { Dataset, FileRow } from "./types.ts";

/** Rows of one file, or of several one after another. */
export interface RowSource {
  size: number;
  row(index: number): FileRow;
  /** Where a row stands: `"train.jsonl:17"`. */
  origin(index: number): string;
  /** The `id` column of each row; undefined where a row has none. */
  id(index: number): string | undefined;
  notes: readonly string[];
}

/**
 * A row's `id` names its task when every row has one of its own; otherwise tasks are `"{name}/{index}"`, because rollouts
 * of different rows under one id would be compared with each other.
 * @throws UserError when there are no rows
 */
export function fileDataset(name: string, source: RowSource): Dataset<FileRow> {
  const { size } = source;
  if (size === 0) throw new UserError(`the dataset ${name} has no rows`);
  const ids = new Set<string>();
  for (let index = 0; index < size; index++) {
    const id = source.id(index);
    if (id !== undefined) ids.add(id);
  }
  const named = ids.size === size;
  const repeated = !named && ids.size > 0;
  const notes = repeated
    ? [...source.notes, `${name}: the column id is missing or repeated in some rows; tasks are named by row number`]
    : source.notes;
  return {
    name,
    size,
    notes,
    task: (index) => ({
      id: (named ? source.id(index) : undefined) ?? `${name}/${index}`,
      row: source.row(index),
      origin: source.origin(index),
    }),
  };
}

/** A value of the column `id` that can name a task. */
export function idText(value: unknown): string | undefined {
  if (typeof value === "string" && value !== "") return value;
  return typeof value === "number" ? String(value) : undefined;
}

/** Sources one after another. */
export function concatenate(sources: readonly RowSource[]): RowSource {
  const starts: number[] = [];
  let size = 0;
  for (const source of sources) {
    starts.push(size);
    size += source.size;
  }
  const locate = (index: number) => {
    let part = starts.length - 1;
    while (starts[part]! > index) part--;
    return { source: sources[part]!, within: index - starts[part]! };
  };
  const at =
    <Result>(read: (source: RowSource, within: number) => Result) =>
    (index: number): Result => {
      const { source, within } = locate(index);
      return read(source, within);
    };
  return {
    size,
    row: at((source, within) => source.row(within)),
    origin: at((source, within) => source.origin(within)),
    id: at((source, within) => source.id(within)),
    notes: sources.flatMap(({ notes }) => notes),
  };
}
