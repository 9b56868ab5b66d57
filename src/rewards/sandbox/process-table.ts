/** The processes of sandboxes, found in /proc: how many there are, what they hold, and how they are ended. */
import { readdirSync, readFileSync } from "node:fs";

interface Entry {
  pid: number;
  parent: number;
  group: number;
  /** Clock ticks since boot; tells a process from a later one of the same id. */
  started: string;
  residentBytes: number;
  /** Its arguments, read when asked for. */
  readonly command: string;
}

const pageBytes = 4096;

/** All processes of this machine that can be seen; empty where there is no /proc. */
export function listProcesses(): Entry[] {
  if (process.platform !== "linux") return [];
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? (readEntry(name) ?? []) : []));
}

function readEntry(pid: string): Entry | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The name, in parentheses, may hold anything.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const [, parent, group] = fields;
    const residentBytes = Number(fields[21]) * pageBytes;
    return {
      ...{ pid: Number(pid), parent: Number(parent), group: Number(group), started: fields[19]!, residentBytes },
      get command() {
        return readOrNothing(`/proc/${pid}/cmdline`).replaceAll("\0", " ");
      },
    };
  } catch {
    return undefined; // It has just ended.
  }
}

/** The processes that one sandbox started. */
export interface Family {
  /** Looks who is there. Those once seen are remembered when their parents are gone. */
  look(table: readonly Entry[]): { processes: number; residentBytes: number };
  /** SIGKILL to all of them, and to all that carry the marker. */
  kill(): void;
}

/** SIGKILL to all processes that carry one of these pieces in their environment. */
export function killMarked(markers: readonly string[]): void {
  for (const { pid } of listProcesses()) {
    const environment = readOrNothing(`/proc/${pid}/environ`);
    if (markers.some((marker) => environment.includes(marker))) signal(pid);
  }
}

/** @param marker a piece of their environment that marks them as this sandbox's */
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
    const mine = [...known.keys()].map((pid) => alive.get(pid)!);
    return { processes: mine.length, residentBytes: mine.reduce((sum, entry) => sum + entry.residentBytes, 0) };
  };
  return {
    look,
    kill() {
      signal(-leader);
      // A family that forks while it is being ended takes more than one pass.
      for (let pass = 0; pass < 20; pass++) {
        const table = listProcesses();
        look(table);
        for (const { pid, started } of table) {
          if (readOrNothing(`/proc/${pid}/environ`).includes(marker)) known.set(pid, started);
        }
        if (known.size === 0) return;
        for (const pid of known.keys()) signal(pid);
      }
    },
  };
}

function signal(target: number): void {
  try {
    process.kill(target, "SIGKILL");
  } catch (error) {
    // Gone already is what was wanted; one that became another user's inside a namespace dies with process 1 there.
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ESRCH" && code !== "EPERM") throw error;
  }
}

function readOrNothing(path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return ""; // Another user's, or gone.
  }
}
