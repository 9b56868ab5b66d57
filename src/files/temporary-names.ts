/** Names of unfinished files and folders. They name the process that writes them, so a later process can clean up. */
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";

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
