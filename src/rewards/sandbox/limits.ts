/** Finds the processes of sandboxes in /proc, measures their memory and ends them. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { SandboxLimits } from "./types.ts";

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
function kill(target: number): void {
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

// Limits for all processes of a sandbox together, enforced by the kernel if this process may create cgroups.

/** What a hierarchy limits: one resource in version 1, all in version 2. */
type Kind = "memory" | "pids" | "cpu" | "unified";

export interface Hierarchy {
  kind: Kind;
  mount: string;
  /** The cgroup of this process. */
  place: string;
}

export interface Cgroup {
  /** Writing "0" into each of these files moves the writing process into the cgroup. */
  entrances: readonly string[];
  /** Writing "0" into this file refuses new processes. Null if this kernel does not limit their number. */
  processLimit: string | null;
  /** Ends all of its processes. */
  kill(): void;
  bytes(): number;
  /** Whether the kernel ended a process at the limit. */
  ranOut(): boolean;
  remove(): void;
}

/** Numeric libraries start one thread for each core, and the kernel counts threads. */
export const threadsPerProcess = 8;

/** The first is required; the others are set if this kernel has them. */
const limitFiles: Record<Kind, (limits: SandboxLimits) => Record<string, number>> = {
  memory: ({ memoryBytes }) => ({
    "memory.limit_in_bytes": memoryBytes,
    "memory.memsw.limit_in_bytes": memoryBytes,
  }),
  pids: ({ processes }) => ({ "pids.max": threadsPerProcess * processes }),
  // All of its processes together weigh as much as one other process, so that a fork bomb leaves time to end it.
  cpu: () => ({ "cpu.shares": 1024 }),
  unified: ({ memoryBytes, processes }) => ({
    "memory.max": memoryBytes,
    "memory.swap.max": 0,
    "memory.oom.group": 1,
    "pids.max": threadsPerProcess * processes,
    "cpu.weight": 100,
  }),
};
const stateFiles = {
  memory: { usage: "memory.usage_in_bytes", events: "memory.oom_control" },
  unified: { usage: "memory.current", events: "memory.events" },
};

/** @param mounts text of /proc/self/mountinfo @param membership text of /proc/self/cgroup */
export function readHierarchies(mounts: string, membership: string): Hierarchy[] {
  const own = membership.split("\n").map((line) => /^(\d+):([^:]*):(.*)$/.exec(line) ?? []);
  return mounts.split("\n").flatMap((line) => {
    const [before = "", after = ""] = line.split(" - ");
    const [type, , options = ""] = after.split(" ");
    const controller = (["memory", "pids", "cpu"] as const).find((name) => options.split(",").includes(name));
    const kind = type === "cgroup2" ? "unified" : type === "cgroup" ? controller : undefined;
    const path = own.find(([, id, names]) =>
      kind === "unified" ? id === "0" : names?.split(",").includes(kind ?? ""),
    );
    const mount = before.split(" ")[4];
    if (kind === undefined || path?.[3] === undefined || mount === undefined) return [];
    return [{ kind, mount, place: join(mount, path[3]) }];
  });
}

interface Home<K extends Kind = Kind> {
  kind: K;
  parent: string;
}

/** The cgroup in which others can be created: this process's own, or the nearest one above it. */
function findHome<K extends Kind>(hierarchies: readonly Hierarchy[], kinds: readonly K[]): Home<K> | undefined {
  const limits = { memoryBytes: 2 ** 30, processes: 64 } as SandboxLimits;
  for (const { kind, mount, place } of hierarchies) {
    if (!(kinds as readonly Kind[]).includes(kind)) continue;
    for (let parent = place; parent.startsWith(mount); parent = dirname(parent)) {
      const trial = create({ kind, parent }, `hone-trial-${process.pid}`, limits);
      if (trial === undefined) continue;
      rmdirSync(trial);
      return { kind: kind as K, parent };
    }
  }
  return undefined;
}

/** In version 1, each resource has a cgroup of its own. */
function findHomes(): Homes | undefined {
  const hierarchies = readHierarchies(read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
  const memory = findHome(hierarchies, ["memory", "unified"]);
  if (memory === undefined) return undefined;
  const others =
    memory.kind === "unified" ? [] : (["pids", "cpu"] as const).map((kind) => findHome(hierarchies, [kind]));
  return { memory, others: others.filter((home) => home !== undefined) };
}

interface Homes {
  memory: Home<"memory" | "unified">;
  others: readonly Home[];
}

let homes: Homes | undefined | null = null;

/** Undefined if this process may not create cgroups. */
export function openCgroup(name: string, limits: SandboxLimits): Cgroup | undefined {
  if (homes === null) homes = findHomes();
  const memory = homes && create(homes.memory, name, limits);
  if (!homes || memory === undefined) return undefined;
  const others = homes.others.map((home) => create(home, name, limits)).filter((folder) => folder !== undefined);
  const folders = [memory, ...others];
  const processLimit = folders.map((folder) => join(folder, "pids.max")).find((file) => existsSync(file)) ?? null;
  const { usage, events } = stateFiles[homes.memory.kind];
  return {
    entrances: folders.map((folder) => join(folder, "cgroup.procs")),
    processLimit,
    kill: () => killMembers(folders),
    bytes: () => Number(read(join(memory, usage))),
    ranOut: () => Number(/^oom_kill (\d+)/m.exec(read(join(memory, events)))?.[1] ?? 0) > 0,
    remove: () => {
      for (const folder of folders) remove(folder);
    },
  };
}

export const hasCgroups = () => Boolean(homes);

/** Disables cgroups for the rest of this process, because programs cannot enter them. */
export function giveUpCgroups(): void {
  homes = undefined;
}

/** Ends and removes what killed processes left. */
export function removeLeftCgroups(isLeft: (name: string) => boolean): void {
  const folders = (homes ? [homes.memory, ...homes.others] : []).flatMap(({ parent }) =>
    readdirSync(parent).flatMap((name) => (isLeft(name) ? [join(parent, name)] : [])),
  );
  killMembers(folders);
  for (const folder of folders) remove(folder);
}

/** New processes are refused first, since a fork bomb would outrun this. */
function killMembers(folders: readonly string[]): void {
  for (const folder of folders) {
    try {
      writeFileSync(join(folder, "pids.max"), "0", { flag: "r+" });
    } catch {
      // Another resource's cgroup, of another user, or already removed.
    }
  }
  // A process outside of this process's namespace is listed as 0, which would be this process's own group.
  const members = folders.flatMap((folder) => read(join(folder, "cgroup.procs")).split("\n").map(Number));
  for (const pid of members) if (pid > 0) kill(pid);
}

function create({ kind, parent }: Home, name: string, limits: SandboxLimits): string | undefined {
  const folder = join(parent, name);
  try {
    mkdirSync(folder);
  } catch {
    return undefined; // Owned by another user, or mounted read-only.
  }
  const files = Object.entries(limitFiles[kind](limits));
  try {
    for (const [index, [file, value]] of files.entries()) {
      const path = join(folder, file);
      if (index === 0 || existsSync(path)) writeFileSync(path, `${value}`, { flag: "r+" });
    }
    return folder;
  } catch {
    rmdirSync(folder); // The controller is not enabled here.
    return undefined;
  }
}

/** Retries, since a process that has just ended may still be in the cgroup. */
function remove(folder: string, tries = 100): void {
  try {
    rmdirSync(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EBUSY" && tries > 0) {
      setTimeout(() => remove(folder, tries - 1), 50);
    }
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return ""; // Gone, or unknown to this kernel.
  }
}
