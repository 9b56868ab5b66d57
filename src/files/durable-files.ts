/** Files that are complete or absent: appended to line by line, or written under a temporary name and renamed. */
import {
  chmodSync,
  closeSync,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";
import { RunError } from "../errors.ts";
import { withPath } from "../system-errors.ts";
import { temporaryName } from "./temporary-names.ts";

const unitNames = ["bytes", "kB", "MB", "GB", "TB"];

/** `1234567` as "1.2 MB" (powers of 1000). */
export function formatBytes(bytes: number): string {
  let unit = 0;
  let value = bytes;
  while (value >= 999.5 && unit < unitNames.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${unitNames[unit]}`;
}

const noSpace = new Set(["ENOSPC", "EDQUOT"]);

export function isOutOfSpace(error: unknown): boolean {
  return noSpace.has((error as NodeJS.ErrnoException)?.code ?? "");
}

export function outOfSpace(file: string, bytes: number, cause: unknown): RunError {
  const quota = (cause as NodeJS.ErrnoException).code === "EDQUOT" ? "your quota is used up" : "the disk is full";
  return new RunError(`${quota}: ${file} needs ${formatBytes(bytes)} more. The unfinished write was undone`, {
    hint: `free some space for ${dirname(file)} and continue with --resume`,
    cause,
  });
}

/**
 * Appends a line with a single write. A line that does not fit on the disk is removed again.
 * @throws RunError when the disk is full
 */
export function appendLine(file: string, line: string): void {
  appendBytes(file, Buffer.from(`${line}\n`));
}

/** The same for raw bytes. */
export function appendBytes(file: string, bytes: Uint8Array): void {
  const handle = openSync(file, "a");
  try {
    const { size } = fstatSync(handle);
    let cause: unknown = Object.assign(new Error("short write"), { code: "ENOSPC" });
    try {
      if (writeSync(handle, bytes) === bytes.length) return;
    } catch (error) {
      if (!isOutOfSpace(error)) throw withPath(error, file);
      cause = error;
    }
    if (fstatSync(handle).isFile()) ftruncateSync(handle, size);
    throw outOfSpace(file, bytes.length, cause);
  } finally {
    closeSync(handle);
  }
}

/**
 * Replaces a file: readers see the old content or the new, even after a power cut.
 * @param pieces written one after another, so a large file is never one string in memory
 * @throws RunError when the disk is full
 */
export function writeWhole(file: string, pieces: Iterable<string | Uint8Array>, mode = 0o666): void {
  const temporary = temporaryName(file);
  let bytes = 0;
  try {
    const handle = openSync(temporary, "w", mode);
    try {
      for (const piece of pieces) {
        const buffer = Buffer.from(piece);
        bytes += buffer.length;
        for (let at = 0; at < buffer.length; ) at += writeSync(handle, buffer, at);
      }
      fsyncSync(handle);
    } finally {
      closeSync(handle);
    }
    renameSync(temporary, file);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw isOutOfSpace(error) ? outOfSpace(file, bytes, error) : withPath(error, file);
  }
}

/** Sets the permissions of a file or folder that already exists, unless another user owns it. */
export function makePrivate(path: string, mode: number): void {
  try {
    if ((statSync(path).mode & 0o777) !== mode) chmodSync(path, mode);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EPERM") throw error;
  }
}
