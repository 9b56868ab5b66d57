/** One trainer to a run folder: a file that names its holder, taken over when that process is gone. */
import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { UserError } from "../errors.ts";

interface Holder {
  pid: number;
  host: string;
  /** When the process started, by the system's own count: a process number that is used again is not the same process. */
  started: string | null;
  since: string;
}

/** Linux only: the boot and the clock tick at which a process started; null elsewhere, or when it is gone. */
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

function isAlive(holder: Holder): boolean {
  if (holder.host !== hostname()) return true; // Another machine's processes cannot be seen from here.
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EPERM") return false;
  }
  return holder.started === null || startOf(holder.pid) === holder.started;
}

/** Undefined: no lock. Null: one that nobody can have written whole, left by a power cut. */
function readHolder(file: string): Holder | null | undefined {
  try {
    return JSON.parse(readFileSync(file, "utf8")) as Holder;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ENOENT" ? undefined : null;
  }
}

/**
 * Takes the folder for this process. Returns the function that gives it back.
 * @throws UserError when another process that is alive holds it
 */
export function lockFolder(folder: string): () => void {
  const file = join(folder, ".lock");
  const mine = `${file}.${process.pid}`;
  const holder: Holder = {
    pid: process.pid,
    host: hostname(),
    started: startOf(process.pid),
    since: new Date().toISOString(),
  };
  const text = `${JSON.stringify(holder)}\n`;
  writeFileSync(mine, text);
  try {
    while (!tryLink(mine, file)) {
      const other = readHolder(file);
      if (other && isAlive(other)) throw inUse(folder, file, other);
      if (other !== undefined) putAside(file, other);
    }
  } finally {
    rmSync(mine, { force: true });
  }
  return () => {
    const now = readHolder(file);
    if (now?.pid === holder.pid && now.since === holder.since) rmSync(file, { force: true });
  };
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

/** Removes a dead lock. Two may find the same one dead: the slower, who would remove the faster one's, puts that back. */
function putAside(file: string, dead: Holder | null): void {
  const aside = `${file}.dead-${process.pid}`;
  try {
    renameSync(file, aside);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
    throw error;
  }
  const moved = readHolder(aside);
  if (moved && (moved.pid !== dead?.pid || moved.since !== dead.since)) tryLink(aside, file);
  rmSync(aside, { force: true });
}

function inUse(folder: string, file: string, { pid, host, since }: Holder): UserError {
  const here = host === hostname();
  return new UserError(
    `${folder} is in use by another trainer: process ${pid}${here ? "" : ` on ${host}`}, since ${since}`,
    {
      hint: here
        ? `wait for it, stop it (kill ${pid}), or train in another folder`
        : `wait for it or train in another folder; if that machine is gone, remove ${file}`,
    },
  );
}
