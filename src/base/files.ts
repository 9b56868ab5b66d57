/** Files that are complete or absent, whatever ends the process, and folders that may come from someone else. */
import { createHash } from "node:crypto";
import {
  chmodSync,
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  writeSync,
} from "node:fs";
import { hostname, tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { RunError, UserError, withPath } from "./errors.ts";

// Names of unfinished files and folders. They name the process that writes them, so a later process can clean up.

export interface ProcessOwner {
  pid: number;
  host: string;
  /** When the process started, in the system's units, to distinguish it from a later process with the same number. Null: unknown. */
  started: string | null;
}

/** Linux: the boot and the clock tick at which a process started. Null on other systems, or when it has ended. */
function startOf(pid: number): string | null {
  try {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // Field 22; the second field, the program's name, is in parentheses and may hold anything.
    return `${boot}/${stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]}`;
  } catch {
    return null;
  }
}

export const thisProcess = (): ProcessOwner => ({
  pid: process.pid,
  host: hostname(),
  started: startOf(process.pid),
});

/** Whether the process certainly has ended. False for processes of other machines. */
export function isGone(owner: ProcessOwner): boolean {
  return hasEnded(owner, (started) => started);
}

function hasEnded({ pid, host, started }: ProcessOwner, abbreviate: (started: string) => string): boolean {
  if (host !== hostname()) return false;
  try {
    process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH";
  }
  const now = startOf(pid);
  return started !== null && now !== null && abbreviate(now) !== started;
}

const short = (started: string) => createHash("sha256").update(started).digest("hex").slice(0, 8);

/** `@host@pid@start` of this process: a part of the names of its unfinished files. */
export const ownerMark = (() => {
  const { pid, host, started } = thisProcess();
  return `@${host}@${pid}@${started === null ? 0 : short(started)}`;
})();

/** Whether the process whose `ownerMark` is in the name certainly has ended. False for a name without one. */
export function isOwnerGone(name: string): boolean {
  const [, host, pid, started = "0"] = /@([^@]+)@(\d+)(?:@([0-9a-f]{8}|0)(?![0-9a-f]))?/.exec(name) ?? [];
  if (host === undefined) return false;
  return hasEnded({ host, pid: Number(pid), started: started === "0" ? null : started }, short);
}

/** This process in letters, digits and `-`, for names that allow nothing else. */
export const ownerKey = (() => {
  const { pid, host, started } = thisProcess();
  return `${short(host)}-${pid}-${started === null ? 0 : short(started)}`;
})();

/** Whether the process whose `ownerKey` the name begins with certainly has ended. */
export function isKeyOwnerGone(name: string): boolean {
  const [, host, pid, started] = /^([0-9a-f]{8})-(\d+)-([0-9a-f]{8}|0)(?![0-9a-f])/.exec(name) ?? [];
  if (host !== short(hostname())) return false;
  return hasEnded({ host: hostname(), pid: Number(pid), started: started === "0" ? null : (started ?? null) }, short);
}

/** Where `path` is written before it is renamed: a hidden file beside it. */
export const temporaryName = (path: string) => join(dirname(path), `.${basename(path)}.${ownerMark}.partial`);

/**
 * Removes the `temporaryName`s that killed processes left in `folder`.
 *
 * @param isLeft default: whether its process has ended. A caller that holds the folder's lock may remove all
 */
export function removeLeftovers(folder: string, isLeft: (name: string) => boolean = isOwnerGone): void {
  for (const name of readdirSync(folder)) {
    if (name.endsWith(".partial") && isLeft(name)) rmSync(join(folder, name), { recursive: true, force: true });
  }
}

const cleaned = new Set<string>();

/**
 * Creates a folder for this process in `root`, by default the system's temporary folder. The caller removes it. The first
 * call with a prefix also removes the folders of killed processes.
 *
 * @example
 * const folder = temporaryFolder("hone-sandbox-");
 */
export function temporaryFolder(prefix: string, root: string = tmpdir()): string {
  const path = join(root, prefix);
  if (!cleaned.has(path)) {
    cleaned.add(path);
    for (const name of readdirSync(root)) {
      if (name.startsWith(prefix) && isOwnerGone(name)) removeOwn(join(root, name));
    }
  }
  return mkdtempSync(`${path}${ownerMark}-`);
}

/** Keeps folders of other users: the system's temporary folder is shared. */
function removeOwn(path: string): void {
  try {
    rmSync(path, { recursive: true, force: true });
  } catch (error) {
    if (!["EPERM", "EACCES"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  }
}

// Files that are complete or absent: appended to line by line, or written under a temporary name and renamed.

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

/**
 * Creates a folder and its parents. Node's `recursive` reports ENOENT for a read-only disk and never returns below /proc.
 *
 * @param mode of the folders that it creates
 * @throws the file system's error
 */
export function makeFolder(path: string, mode = 0o777): void {
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const parent = dirname(path);
    if (code === "EEXIST" && statSync(path).isDirectory()) return;
    if (code !== "ENOENT" || parent === path) throw error;
    makeFolder(parent, mode);
    // Does not retry ENOENT again: /proc reports it for folders that exist.
    mkdirSync(path, { mode });
  }
}

// Reads the files of a folder that may come from someone else, such as a run. Only regular files are opened: a FIFO would
// block, a device has no end, and a link may lead out of the folder.

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
