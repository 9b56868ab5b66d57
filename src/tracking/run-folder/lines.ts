/** Reads the lines of a growing file, with their positions. A line that is too long is skipped without keeping it in memory. */
import { readSync } from "node:fs";
import { formatBytes } from "../../files/durable-files.ts";
import type { OpenFile } from "../../files/regular-file.ts";

export interface PlacedLine {
  /** Bytes from the start of the file, and of the line without its break. */
  offset: number;
  length: number;
  /** Where the next line begins. */
  next: number;
  /** Undefined if the line is too long. */
  text: string | undefined;
  /** False for a last line without a line break. */
  ended: boolean;
}

/** The most bytes of a line of events.jsonl or metrics.jsonl, and of an episode. */
export const maxLineBytes = 1 << 22;
export const maxEpisodeBytes = 1 << 26;

const pieceBytes = 1 << 18;
/** So many bytes without a line break count as a line, so that a reader can pause. */
const maxSkipped = 1 << 28;

/**
 * @param offset the start of a line
 * @param max the most bytes of a line
 */
export function* linesFrom(
  { handle }: OpenFile,
  { offset = 0, end = Number.POSITIVE_INFINITY, max = maxLineBytes } = {},
): Generator<PlacedLine> {
  let start = offset;
  let length = 0;
  /** The pieces of an incomplete line; empty if it is too long. */
  let kept: Buffer[] = [];

  function take(piece: Buffer): void {
    length += piece.length;
    if (length > max) kept = [];
    else kept.push(piece);
  }
  function finish(ended: boolean): PlacedLine {
    const text = length > max ? undefined : Buffer.concat(kept).toString("utf8");
    const line = { offset: start, length, next: start + length + Number(ended), text, ended };
    start = line.next;
    length = 0;
    kept = [];
    return line;
  }

  for (;;) {
    const piece = Buffer.allocUnsafe(Math.min(pieceBytes, Math.max(0, end - start - length)));
    const size = readSync(handle, piece, 0, piece.length, start + length);
    if (size === 0) break;
    let from = 0;
    for (let at = piece.indexOf(10); at >= 0 && at < size; at = piece.indexOf(10, from)) {
      take(piece.subarray(from, at));
      yield finish(true);
      from = at + 1;
    }
    if (from < size) take(piece.subarray(from, size));
    if (length > maxSkipped) yield finish(false);
  }
  if (length > 0) yield finish(false);
}

/** The same without a last line that is still being written. */
export function* completeLines(...given: Parameters<typeof linesFrom>): Generator<PlacedLine> {
  for (const line of linesFrom(...given)) if (line.ended || line.text === undefined) yield line;
}

export const tooLong = (bytes: number, max = maxLineBytes) =>
  `it has ${formatBytes(bytes)}; at most ${formatBytes(max)} are read`;

/** @throws Error if the file has become shorter */
export function readAt({ handle }: OpenFile, offset: number, length: number): string {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length; ) {
    const size = readSync(handle, bytes, at, length - at, offset + at);
    if (size === 0) throw new Error("the file has become shorter");
    at += size;
  }
  return bytes.toString("utf8");
}
