/** Data files as datasets: JSON Lines and Parquet, with ids and the origin of each row. */
import { constants } from "node:buffer";
import { closeSync, fstatSync, openSync, readSync, type Stats } from "node:fs";
import { getHeapStatistics } from "node:v8";
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from "hyparquet";
import { compressors } from "hyparquet-compressors";
import { HoneError, UserError } from "../base/errors.ts";
import { parseJson } from "../base/json.ts";
import { type Dataset, type FileRow, partAt } from "./dataset.ts";

// Rows with origins become a dataset with ids.

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

// Converts file system errors about a data file to user errors.

const messages: Readonly<Record<string, string>> = {
  ENOENT: "file not found",
  EISDIR: "is a folder; give the path of a file in it",
  EACCES: "permission denied",
};

function fileFailure(error: unknown, label: string): HoneError {
  if (error instanceof HoneError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  return new UserError(`${label}: ${messages[code ?? ""] ?? `cannot be read: ${message}`}`, {
    hint: "Dataset paths are relative to the working directory.",
    cause: error,
  });
}

// Reads rows of a JSON Lines file. The whole file is checked once on opening; then only line offsets are kept in memory,
// and a row is read from the file on demand.

const blockSize = 1 << 16;
const newline = 0x0a;

/**
 * @param label the name of the file in messages
 * @throws UserError for the first invalid line, as `label:line: ...`
 */
export function openJsonl(file: string, label = file): RowSource {
  const rows: { start: number; end: number; line: number; id: string | undefined }[] = [];
  let empty = 0;
  const stats = scanLines(file, label, (bytes, start, line) => {
    const text = decodeLine(bytes, `${label}:${line}`);
    if (text.trim() === "") {
      empty++;
      return;
    }
    const row = parseRow(text, `${label}:${line}`, line);
    rows.push({ start, end: start + bytes.length, line, id: idText(row.id) });
  });

  const at = (index: number) => {
    const row = rows[index];
    if (row === undefined) throw new RangeError(`${label} does not have a row ${index}`);
    return row;
  };
  let block: { start: number; bytes: Buffer } = { start: 0, bytes: Buffer.alloc(0) };
  const read = (start: number, end: number): Buffer => {
    if (start < block.start || end > block.start + block.bytes.length) {
      block = { start, bytes: readBlock(file, label, stats, start, Math.max(end - start, blockSize)) };
    }
    return block.bytes.subarray(start - block.start, end - block.start);
  };
  return {
    size: rows.length,
    row(index) {
      const { start, end, line } = at(index);
      const where = `${label}:${line}`;
      return parseRow(decodeLine(read(start, end), where), where, line);
    },
    origin: (index) => `${label}:${at(index).line}`,
    id: (index) => at(index).id,
    notes: empty === 0 ? [] : [`${label}: skipped ${empty} empty line${empty === 1 ? "" : "s"}`],
  };
}

/** Calls `onLine` with each line's bytes (without the line break), its offset in the file and its number from 1. */
function scanLines(file: string, label: string, onLine: (bytes: Buffer, start: number, line: number) => void): Stats {
  const descriptor = open(file, label);
  try {
    const stats = fstatSync(descriptor);
    const chunk = Buffer.alloc(1 << 20);
    let pending: Buffer[] = [];
    let start = 0;
    let line = 1;
    let position = 0;
    for (let count = readSync(descriptor, chunk); count > 0; count = readSync(descriptor, chunk)) {
      let from = 0;
      for (let end = chunk.indexOf(newline); end >= 0 && end < count; end = chunk.indexOf(newline, from)) {
        onLine(Buffer.concat([...pending, chunk.subarray(from, end)]), start, line);
        pending = [];
        line++;
        from = end + 1;
        start = position + from;
      }
      if (from < count) pending.push(Buffer.from(chunk.subarray(from, count)));
      position += count;
    }
    if (pending.length > 0) onLine(Buffer.concat(pending), start, line);
    return stats;
  } catch (error) {
    throw fileFailure(error, label);
  } finally {
    closeSync(descriptor);
  }
}

function readBlock(file: string, label: string, scanned: Stats, start: number, length: number): Buffer {
  const descriptor = open(file, label);
  try {
    const { size, mtimeMs } = fstatSync(descriptor);
    if (size !== scanned.size || mtimeMs !== scanned.mtimeMs) {
      throw new UserError(`${label} has changed since it was opened`, {
        hint: "Data must not change during a run; train on a copy of the file.",
      });
    }
    const bytes = Buffer.alloc(Math.min(length, size - start));
    readSync(descriptor, bytes, 0, bytes.length, start);
    return bytes;
  } finally {
    closeSync(descriptor);
  }
}

function open(file: string, label: string): number {
  try {
    return openSync(file, "r");
  } catch (error) {
    throw fileFailure(error, label);
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

function decodeLine(bytes: Buffer, where: string): string {
  if (bytes.length > constants.MAX_STRING_LENGTH)
    throw new UserError(`${where}: the line has ${bytes.length} bytes; the limit is ${constants.MAX_STRING_LENGTH}`);
  try {
    return utf8.decode(bytes);
  } catch {
    throw new UserError(`${where}: the line is not UTF-8 text`, {
      hint: "A dataset is JSON Lines (.jsonl): one JSON object per line, in UTF-8.",
    });
  }
}

function parseRow(text: string, where: string, line: number): FileRow {
  const hint = "A dataset is JSON Lines (.jsonl): one JSON object per line, each with the same columns.";
  let row: unknown;
  try {
    row = parseJson(text);
  } catch (error) {
    const array = line === 1 && text.trim().startsWith("[") ? "; the file seems to be a single JSON array" : "";
    throw new UserError(
      `${where}: invalid JSON: ${(error as Error).message}${array}; the line starts with ${preview(text)}`,
      {
        hint,
      },
    );
  }
  if (typeof row !== "object" || row === null || Array.isArray(row)) {
    throw new UserError(`${where}: a row must be a JSON object, but the line starts with ${preview(text)}`, { hint });
  }
  return row as FileRow;
}

const preview = (text: string) => (text.length > 60 ? `${text.slice(0, 60).trimEnd()}...` : text.trimEnd());

// Reads all rows of a Parquet file into memory, because its columns are compressed in blocks of many rows.

/**
 * 64-bit integers become numbers if exact, otherwise text.
 * @param label the name of the file in messages
 * @throws UserError when the file is not a readable Parquet file, or is too large for this process's memory
 */
export async function openParquet(file: string, label = file): Promise<RowSource> {
  const rows = await readRows(file, label);
  return {
    size: rows.length,
    row: (index) => rows[index] ?? {},
    origin: (index) => `${label} row ${index + 1}`,
    id: (index) => idText(rows[index]?.id),
    notes: [],
  };
}

async function readRows(path: string, label: string): Promise<FileRow[]> {
  try {
    // Opening the file first reports problems with the path clearly.
    closeSync(openSync(path, "r"));
    const file = await asyncBufferFromFile(path);
    const metadata = await parquetMetadataAsync(file);
    const bytes = metadata.row_groups.reduce((sum, group) => sum + Number(group.total_byte_size), 0);
    const room = getHeapStatistics().heap_size_limit;
    if (bytes * 2 > room) {
      const gigabytes = (count: number) => `${(count / 1e9).toFixed(1)} GB`;
      throw new UserError(
        `${label} contains ${gigabytes(bytes)} of rows, but this process may use only ${gigabytes(room)} of memory`,
        {
          hint: `Set NODE_OPTIONS=--max-old-space-size=${Math.ceil((bytes * 3) / 2 ** 20)}, or convert the file to .jsonl, which is read line by line.`,
        },
      );
    }
    // By default, the library reads binary columns, such as those of images, as text.
    const rows = await parquetReadObjects({ file, metadata, compressors, utf8: false });
    return rows.map((row) => plainValue(row) as FileRow);
  } catch (error) {
    if (error instanceof HoneError || (error as NodeJS.ErrnoException).code !== undefined)
      throw fileFailure(error, label);
    throw new UserError(`${label}: not a readable Parquet file: ${(error as Error).message}`, {
      hint: "Download or write the file again; an interrupted download leaves it incomplete.",
      cause: error,
    });
  }
}

/** Objects of struct columns, in which a row has all keys of all rows: those that it does not use are null. */
const structs = new WeakSet<object>();

export const isStruct = (value: object): boolean => structs.has(value);

function plainValue(value: unknown): unknown {
  if (typeof value === "bigint") {
    const exact = value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER);
    return exact ? Number(value) : String(value);
  }
  // A null in a list or structure.
  if (value === undefined) return null;
  if (value instanceof Date || ArrayBuffer.isView(value)) return value;
  if (Array.isArray(value)) return value.map(plainValue);
  if (typeof value !== "object" || value === null) return value;
  const plain = Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plainValue(member)]));
  structs.add(plain);
  return plain;
}
