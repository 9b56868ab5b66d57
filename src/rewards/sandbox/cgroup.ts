/** A memory limit for all processes of a sandbox together, enforced by the kernel if this process may create cgroups. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { SandboxLimits } from "./types.ts";

export interface Hierarchy {
  version: 1 | 2;
  mount: string;
  /** The cgroup of this process. */
  place: string;
}

export interface Cgroup {
  /** Writing "0" into this file moves the writing process into the cgroup. */
  entrance: string;
  bytes(): number;
  /** Whether the kernel ended a process at the limit. */
  ranOut(): boolean;
  remove(): void;
}

/** The first is required; the others are set if this kernel has them. */
const limitFiles = {
  1: ({ memoryBytes }: SandboxLimits) => ({
    "memory.limit_in_bytes": memoryBytes,
    "memory.memsw.limit_in_bytes": memoryBytes,
  }),
  2: ({ memoryBytes, processes }: SandboxLimits) => ({
    "memory.max": memoryBytes,
    "memory.swap.max": 0,
    "memory.oom.group": 1,
    "pids.max": processes,
  }),
};
const stateFiles = {
  1: { usage: "memory.usage_in_bytes", events: "memory.oom_control" },
  2: { usage: "memory.current", events: "memory.events" },
};

/** @param mounts text of /proc/self/mountinfo @param membership text of /proc/self/cgroup */
export function memoryHierarchies(mounts: string, membership: string): Hierarchy[] {
  const own = membership.split("\n").map((line) => /^(\d+):([^:]*):(.*)$/.exec(line) ?? []);
  return mounts.split("\n").flatMap((line) => {
    const [before = "", after = ""] = line.split(" - ");
    const [kind, , options = ""] = after.split(" ");
    const version = kind === "cgroup2" ? 2 : 1;
    if (version === 1 && !(kind === "cgroup" && options.split(",").includes("memory"))) return [];
    const path = own.find(([, id, names]) => (version === 2 ? id === "0" : names?.split(",").includes("memory")))?.[3];
    const mount = before.split(" ")[4];
    return path === undefined || mount === undefined ? [] : [{ version, mount, place: join(mount, path) }];
  });
}

/** The cgroup in which others can be created: this process's own, or the nearest one above it. */
function findHome(): { version: 1 | 2; parent: string } | undefined {
  const limits = { memoryBytes: 2 ** 30, processes: 64 } as SandboxLimits;
  for (const { version, mount, place } of memoryHierarchies(read("/proc/self/mountinfo"), read("/proc/self/cgroup"))) {
    for (let parent = place; parent.startsWith(mount); parent = dirname(parent)) {
      const trial = create({ version, parent }, `hone-trial-${process.pid}`, limits);
      if (trial === undefined) continue;
      rmdirSync(trial);
      return { version, parent };
    }
  }
  return undefined;
}

let home: ReturnType<typeof findHome> | null = null;

/** Undefined if this process may not create cgroups. */
export function openCgroup(name: string, limits: SandboxLimits): Cgroup | undefined {
  if (home === null) home = findHome();
  const folder = home && create(home, name, limits);
  if (!home || folder === undefined) return undefined;
  const { usage, events } = stateFiles[home.version];
  return {
    entrance: join(folder, "cgroup.procs"),
    bytes: () => Number(read(join(folder, usage))),
    ranOut: () => Number(/^oom_kill (\d+)/m.exec(read(join(folder, events)))?.[1] ?? 0) > 0,
    remove: () => remove(folder),
  };
}

export const hasCgroups = () => Boolean(home);

/** Disables cgroups for the rest of this process, because programs cannot enter them. */
export function giveUpCgroups(): void {
  home = undefined;
}

/** Removes the cgroups that killed processes left. */
export function removeLeftCgroups(isLeft: (name: string) => boolean): void {
  if (!home) return;
  for (const name of readdirSync(home.parent)) if (isLeft(name)) remove(join(home.parent, name));
}

function create(
  { version, parent }: { version: 1 | 2; parent: string },
  name: string,
  limits: SandboxLimits,
): string | undefined {
  const folder = join(parent, name);
  try {
    mkdirSync(folder);
  } catch {
    return undefined; // Owned by another user, or mounted read-only.
  }
  const files = Object.entries(limitFiles[version](limits));
  try {
    for (const [index, [file, value]] of files.entries()) {
      const path = join(folder, file);
      if (index === 0 || existsSync(path)) writeFileSync(path, `${value}`, { flag: "r+" });
    }
    return folder;
  } catch {
    rmdirSync(folder); // The memory controller is not enabled here.
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
