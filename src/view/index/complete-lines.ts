/** Reads the complete lines of a growing file, with their positions. */
import { closeSync, openSync, readSync } from "node:fs";

export interface PlacedLine {
  /** Bytes from the start of the file, and of the line without its break. */
  offset: number;
  length: number;
  text: string;
}

const pieceBytes = 1 << 18;

/** Reads from `offset` (the start of a line) to the last line break. An incomplete last line is left for later. */
export function* completeLines(file: string, offset = 0, end = Number.POSITIVE_INFINITY): Generator<PlacedLine> {
  const handle = openSync(file, "r");
  try {
    /** The pieces of an incomplete line; the first byte is at `start`. */
    let kept: Buffer[] = [];
    let keptBytes = 0;
    let start = offset;
    for (;;) {
      const wanted = Math.min(pieceBytes, end - start - keptBytes);
      if (wanted <= 0) return;
      const piece = Buffer.allocUnsafe(wanted);
      const size = readSync(handle, piece, 0, wanted, start + keptBytes);
      if (size === 0) return;
      let from = 0;
      for (let at = piece.indexOf(10); at >= 0 && at < size; at = piece.indexOf(10, from)) {
        const line = Buffer.concat([...kept, piece.subarray(from, at)]);
        yield { offset: start, length: line.length, text: line.toString("utf8") };
        start += line.length + 1;
        from = at + 1;
        kept = [];
        keptBytes = 0;
      }
      if (from < size) {
        kept.push(piece.subarray(from, size));
        keptBytes += size - from;
      }
    }
  } finally {
    closeSync(handle);
  }
}

export function readAt(file: string, offset: number, length: number): string {
  const handle = openSync(file, "r");
  try {
    const bytes = Buffer.alloc(length);
    for (let at = 0; at < length; ) {
      const size = readSync(handle, bytes, at, length - at, offset + at);
      if (size === 0) throw new Error(`${file} is shorter than when it was indexed`);
      at += size;
    }
    return bytes.toString("utf8");
  } finally {
    closeSync(handle);
  }
}
