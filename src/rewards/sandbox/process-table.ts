/** Finds the processes of sandboxes in /proc, measures their memory and ends them. */
import { readdirSync, readFileSync } from "node:fs";

interface Entry {
  pid: number;
  parent: number;
  group: number;
  /** Clock ticks since boot; distinguishes a process from a later one with the same id. */
  started: string;
  residentBytes: number;
  threads: number;
  /** Its arguments, read on access. */
  readonly command: string;
}

const pageBytes = 4096;

/** All visible processes of this machine; empty without /proc. */
export function listProcesses(): Entry[] {
  if (process.platform !== "linux") return [];
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? (readEntry(name) ?? []) : []));
}

function readEntry(pid: string): Entry | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The name, in parentheses, may contain anything.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const [, parent, group] = fields;
    const residentBytes = Number(fields[21]) * pageBytes;
    return {
      pid: Number(pid),
      parent: Number(parent),
      group: Number(group),
      started: fields[19] ?? "",
      residentBytes,
      threads: Number(fields[17]),
      get command() {
        return readOrNothing(`/proc/${pid}/cmdline`).replaceAll("\0", " ");
      },
    };
  } catch {
    return undefined; // The process has just ended.
  }
}

/** The processes that one sandbox started. */
export interface Family {
  /** Counts the processes and threads. Known ones are found even after their parents have ended. */
  look(table: readonly Entry[]): { processes: number; threads: number; residentBytes: number };
  /** Sends SIGKILL to all of them, and to all processes with the marker. */
  kill(): void;
}

/** Sends SIGKILL to all processes whose environment contains one of these markers. */
export function killMarked(markers: readonly string[]): void {
  for (const { pid } of listProcesses()) {
    const environment = readOrNothing(`/proc/${pid}/environ`);
    if (markers.some((marker) => environment.includes(marker))) kill(pid);
  }
}

/** @param marker text in the environment of this sandbox's processes */
export function watchFamily(leader: number, marker: string): Family {
  const known = new Map<number, string>();
  const look: Family["look"] = (table) => {
    const alive = new Map(table.map((entry) => [entry.pid, entry]));
    for (const [pid, started] of known) if (alive.get(pid)?.started !== started) known.delete(pid);
    for (let grown = true; grown; ) {
      grown = false;
      for (const { pid, parent, group, started } of table) {
        if (known.has(pid) || !(pid === leader || group === leader || known.has(parent))) continue;
        known.set(pid, started);
        grown = true;
      }
    }
    const own = table.filter(({ pid }) => known.has(pid));
    const sum = (key: "threads" | "residentBytes") => own.reduce((total, entry) => total + entry[key], 0);
    return { processes: own.length, threads: sum("threads"), residentBytes: sum("residentBytes") };
  };
  return {
    look,
    kill() {
      kill(-leader);
      // Processes that fork meanwhile need more than one pass.
      for (let pass = 0; pass < 20; pass++) {
        const table = listProcesses();
        look(table);
        for (const { pid, started } of table) {
          if (readOrNothing(`/proc/${pid}/environ`).includes(marker)) known.set(pid, started);
        }
        if (known.size === 0) return;
        for (const pid of known.keys()) kill(pid);
      }
    },
  };
}

/** Sends SIGKILL to a process, or to the process group of a negative number. */
export function kill(target: number): void {
  try {
    process.kill(target, "SIGKILL");
  } catch (error) {
    // It has already ended, or belongs to another user inside a namespace and ends with process 1 there.
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ESRCH" && code !== "EPERM") throw error;
  }
}

function readOrNothing(path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return ""; // It belongs to another user, or has ended.
  }
}
