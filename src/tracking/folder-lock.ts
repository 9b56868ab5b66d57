/** One process to a folder, such as a run's trainer or a server's state: a file that names its holder, taken over when that process is gone. */
import { createHash } from "node:crypto";
import { linkSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { UserError } from "../errors.ts";
import { withPath } from "../system-errors.ts";
import { isGone, isOwnerGone, ownerMark, type ProcessOwner, thisProcess } from "../temporary-names.ts";

interface Holder extends ProcessOwner {
  since: string;
}

/** The text of a lock; undefined when there is none. */
function readLock(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw withPath(error, file);
  }
}

/** Undefined for what nobody wrote whole, such as the empty file that a power cut may leave. */
function holderOf(text: string): Holder | undefined {
  try {
    return JSON.parse(text) as Holder;
  } catch {
    return undefined;
  }
}

/**
 * Takes the folder for this process. Returns the function that gives it back.
 * @throws UserError when another process that is alive holds it
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

/** Whether the folder was left by a process that has surely ended without giving it back. */
export function isAbandoned(folder: string): boolean {
  const holder = holderOf(readLock(join(folder, ".lock")) ?? "");
  return holder !== undefined && isGone(holder);
}

/** What processes left that were killed while they took the lock. */
function removeDeadClaims(folder: string): void {
  const names = readdirSync(folder).filter((name) => name.startsWith(".lock."));
  for (const name of names.filter(isOwnerGone)) rmSync(join(folder, name), { force: true });
}

/**
 * Makes `file` a link to `mine`. Of several that find it held by the same dead process, the one that first takes a
 * second lock, named after the dead one's text, may replace it; nobody else touches it meanwhile.
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
    // It was replaced, and perhaps given back, before the claim was ours.
    rmSync(claim, { force: true });
  }
}

/** A link either appears with its whole content or fails: there is no moment in which the lock is empty. */
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
