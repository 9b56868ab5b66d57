/**
 * Reads the files of a folder that may come from someone else, such as a run. Only regular files are opened: a FIFO would
 * block, a device has no end, and a link may lead out of the folder.
 */
import { closeSync, constants, fstatSync, lstatSync, openSync, readSync, type Stats } from "node:fs";
import { join } from "node:path";
import { UserError } from "../errors.ts";
import { withPath } from "../system-errors.ts";
import { formatBytes } from "./durable-files.ts";

export interface OpenFile {
  handle: number;
  stat: Stats;
}

/**
 * Opens a file for reading. The folder itself may be a link.
 * @param name within the folder, with slashes
 * @returns undefined if it does not exist
 * @throws UserError if it, or a folder that leads to it, is of another kind or a link; the file system's error if it cannot be read
 */
export function openInside(folder: string, name: string): OpenFile | undefined {
  const parts = name.split("/");
  let path = folder;
  let handle: number | undefined;
  try {
    for (const [index, part] of parts.entries()) {
      path = join(path, part);
      const found = lstatSync(path, { throwIfNoEntry: false });
      if (found === undefined) return undefined;
      const isLast = index === parts.length - 1;
      if (isLast ? !found.isFile() : !found.isDirectory()) throw wrongKind(path, found, isLast);
    }
    // The file may have been replaced since.
    handle = openSync(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0) | (constants.O_NOFOLLOW ?? 0));
    const stat = fstatSync(handle);
    if (!stat.isFile()) throw wrongKind(path, stat, true);
    return { handle, stat };
  } catch (error) {
    if (handle !== undefined) closeSync(handle);
    const { code = "" } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return undefined;
    throw withPath(error, path);
  }
}

function wrongKind(path: string, found: Stats, wantsFile: boolean): Error {
  if (found.isDirectory()) return Object.assign(new Error("it is a folder"), { code: "EISDIR", syscall: "open", path });
  const kind = found.isSymbolicLink()
    ? "a link, which is not followed"
    : found.isFIFO()
      ? "a FIFO"
      : found.isSocket()
        ? "a socket"
        : found.isFile()
          ? "a file"
          : "a device";
  return new UserError(`${path} is ${kind}; it must be a ${wantsFile ? "regular file" : "folder"}`, {
    hint: "replace it, or copy the run without it",
  });
}

/** Calls `work` with the open file; returns undefined if the file does not exist. @throws as `openInside` */
export function withInside<Result>(folder: string, name: string, work: (file: OpenFile) => Result): Result | undefined {
  const file = openInside(folder, name);
  if (file === undefined) return undefined;
  try {
    return work(file);
  } finally {
    closeSync(file.handle);
  }
}

/**
 * Reads a whole file.
 * @param most bytes
 * @returns undefined if it does not exist
 * @throws as `openInside`; UserError if it is larger
 */
export function readInside(folder: string, name: string, most: number): Buffer | undefined {
  return withInside(folder, name, ({ handle, stat }) => {
    const bytes = Buffer.alloc(Math.min(stat.size, most) + 1);
    let size = 0;
    for (let read = -1; read !== 0 && size < bytes.length; size += read) {
      read = readSync(handle, bytes, size, bytes.length - size, size);
    }
    if (size > most) {
      throw new UserError(`${join(folder, name)} has ${formatBytes(stat.size)}; at most ${formatBytes(most)} are read`);
    }
    return bytes.subarray(0, size);
  });
}
