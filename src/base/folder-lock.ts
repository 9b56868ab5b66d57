/** Lets one process at a time use a folder: a file names the holder and is taken over when that process has ended. */
import { createHash } from "node:crypto";
import { linkSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { basename, dirname, join } from "node:path";
import { z } from "zod";
import { HoneError, readable, UserError } from "./errors.ts";
import { isGone, isOwnerGone, ownerMark, readInside, thisProcess } from "./files.ts";

const holderSchema = z.object({
  pid: z.int().positive(),
  host: z.string(),
  started: z.string().nullable(),
  since: z.string(),
});

type Holder = z.output<typeof holderSchema>;

const maxLockBytes = 1 << 16;

/** The text of a lock; undefined when there is none. @throws as `readInside` */
const readLock = (file: string): string | undefined =>
  readInside(dirname(file), basename(file), maxLockBytes)?.toString("utf8");

/** Undefined for a damaged file, such as the empty one that a power cut may leave. */
function holderOf(text: string): Holder | undefined {
  try {
    return holderSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** Undefined also for a lock that cannot be read: only `lockFolder`, which needs it, reports that. */
function readHolder(folder: string): Holder | undefined {
  try {
    return holderOf(readLock(join(folder, ".lock")) ?? "");
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

/**
 * Locks the folder for this process and returns the function that unlocks it.
 * @throws UserError when a running process holds the lock
 */
export function lockFolder(folder: string): () => void {
  const file = join(folder, ".lock");
  const mine = `${file}.${ownerMark}`;
  const holder: Holder = { ...thisProcess(), since: new Date().toISOString() };
  const text = `${JSON.stringify(holder)}\n`;
  writeFileSync(mine, text);
  try {
    take(file, mine, folder);
  } finally {
    rmSync(mine, { force: true });
  }
  removeDeadClaims(folder);
  return () => {
    if (readLock(file) === text) rmSync(file, { force: true });
  };
}

/** Whether the folder is locked by a running process, or by one on another machine, where this cannot be checked. */
export function isLocked(folder: string): boolean {
  const holder = readHolder(folder);
  return holder !== undefined && !isGone(holder);
}

/** Whether a process that certainly has ended left the folder locked. */
export function isAbandoned(folder: string): boolean {
  const holder = readHolder(folder);
  return holder !== undefined && isGone(holder);
}

/** Removes the files of processes that were killed while they took the lock. */
function removeDeadClaims(folder: string): void {
  const names = readdirSync(folder).filter((name) => name.startsWith(".lock."));
  for (const name of names.filter(isOwnerGone)) rmSync(join(folder, name), { force: true });
}

/**
 * Makes `file` a link to `mine`. When several processes find it held by the same dead process, the first that takes a
 * second lock, named after the text of the first, replaces it. The others wait.
 */
function take(file: string, mine: string, folder: string): void {
  while (!tryLink(mine, file)) {
    const text = readLock(file);
    if (text === undefined) continue;
    const holder = holderOf(text);
    if (holder && !isGone(holder)) throw inUse(folder, file, holder);
    const claim = `${file}-${createHash("sha256").update(text).digest("hex").slice(0, 12)}`;
    take(claim, mine, folder);
    if (readLock(file) === text) {
      renameSync(claim, file);
      return;
    }
    // Another process replaced it before this one held the claim.
    rmSync(claim, { force: true });
  }
}

/** Linking is atomic: the lock file is never empty. */
function tryLink(from: string, to: string): boolean {
  try {
    linkSync(from, to);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

function inUse(folder: string, file: string, { pid, host, since }: Holder): UserError {
  const here = host === hostname();
  return new UserError(`${folder} is in use by process ${pid}${here ? "" : ` on ${host}`}, since ${since}`, {
    hint: here
      ? `wait for it, stop it (kill ${pid}), or use another folder`
      : `wait for it or use another folder; if that machine is gone, remove ${file}`,
  });
}
