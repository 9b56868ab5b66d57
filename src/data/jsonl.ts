/**
 * Reads rows of a JSON Lines file. The whole file is checked once on opening; then only line offsets are kept in memory,
 * and a row is read from the file on demand.
 */
import { constants } from "node:buffer";
import { closeSync, fstatSync, openSync, readSync, type Stats } from "node:fs";
import { UserError } from "../errors.ts";
import { idText, type RowSource } from "./file-dataset.ts";
import { fileFailure } from "./file-failure.ts";
import type { FileRow } from "./types.ts";

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
    row = JSON.parse(text);
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
