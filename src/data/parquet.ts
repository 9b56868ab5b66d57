/** Reads all rows of a Parquet file into memory, because its columns are compressed in blocks of many rows. */
import { closeSync, openSync } from "node:fs";
import { getHeapStatistics } from "node:v8";
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from "hyparquet";
import { compressors } from "hyparquet-compressors";
import { HoneError, UserError } from "../errors.ts";
import { idText, type RowSource } from "./file-dataset.ts";
import { fileFailure } from "./file-failure.ts";
import type { FileRow } from "./types.ts";

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
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plainValue(member)]));
}
