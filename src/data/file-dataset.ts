/** Shared by the readers of all file formats: turns rows with origins into a dataset with ids. */
import { UserError } from "../errors.ts";
import { partAt } from "./concatenated.ts";
import type { Dataset, FileRow } from "./types.ts";

/** The rows of one file, or of several files in sequence. */
export interface RowSource {
  size: number;
  row(index: number): FileRow;
  /** The location of a row: `"train.jsonl:17"`. */
  origin(index: number): string;
  /** The `id` column of a row; undefined if the row does not have one. */
  id(index: number): string | undefined;
  notes: readonly string[];
}

/**
 * The `id` column becomes the task id if it is unique in every row. Otherwise task ids are `"{name}/{index}"`, because
 * rollouts of different rows with the same id would be compared with each other.
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
  const hasUniqueIds = ids.size === size;
  const ignoresIds = !hasUniqueIds && ids.size > 0;
  const notes = ignoresIds
    ? [...source.notes, `${name}: the column "id" is missing or not unique in some rows; using row numbers as task ids`]
    : source.notes;
  return {
    name,
    size,
    notes,
    task: (index) => ({
      id: (hasUniqueIds ? source.id(index) : undefined) ?? `${name}/${index}`,
      row: source.row(index),
      origin: source.origin(index),
    }),
  };
}

/** The task id from a value of the column `id`, or undefined if it cannot be one. */
export function idText(value: unknown): string | undefined {
  if (typeof value === "string" && value !== "") return value;
  return typeof value === "number" ? String(value) : undefined;
}

/** Concatenates row sources. */
export function concatenate(sources: readonly RowSource[]): RowSource {
  const at =
    <Result>(read: (source: RowSource, within: number) => Result) =>
    (index: number): Result => {
      const { part, within } = partAt(sources, index);
      return read(part, within);
    };
  return {
    size: sources.reduce((total, source) => total + source.size, 0),
    row: at((source, within) => source.row(within)),
    origin: at((source, within) => source.origin(within)),
    id: at((source, within) => source.id(within)),
    notes: sources.flatMap(({ notes }) => notes),
  };
}
