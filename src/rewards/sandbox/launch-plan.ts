/** The input of the launcher (worker/sandbox/launch.py): everything that a program may do and use. */
import { fileURLToPath } from "node:url";
import type { Cgroup } from "./cgroup.ts";
import type { Interpreter } from "./interpreters.ts";
import type { LocalLevel, SandboxLimits } from "./types.ts";

export interface LaunchPlan {
  level: LocalLevel;
  /** The launcher ends the program when this process ends. */
  owner: number;
  /** An empty folder to build the program's file system in; only level `namespaces` uses it. */
  root: string;
  /** The folder of the program's files. */
  files: string;
  /** The user that the program becomes at level `namespaces`. */
  user: number;
  /** Paths that the program sees in addition to the system's own folders. */
  paths: readonly string[];
  limits: Pick<SandboxLimits, "cpuSeconds" | "fileBytes" | "processes"> & { addressSpace: number | null };
  cgroup: Pick<Cgroup, "entrances" | "processLimit"> | null;
  /** Whether descriptor 4 is passed on to the program. */
  channel: boolean;
  command: readonly string[];
  environment: Readonly<Record<string, string>>;
}

export interface Placed {
  folder: string;
  command: readonly string[];
  interpreter: Interpreter | undefined;
  limits: SandboxLimits;
  cgroup: LaunchPlan["cgroup"];
  channel: boolean;
  marker: string;
}

const launcher = fileURLToPath(new URL("../../../worker/sandbox/launch.py", import.meta.url));

/** Above all real users. Each sandbox has its own, so that the kernel counts its processes separately. */
const firstUser = 1_000_000_000;
let users = 0;

export function launchPlan(level: LocalLevel, placed: Placed): LaunchPlan {
  const { folder, interpreter, limits, command, cgroup, channel } = placed;
  const files = `${folder}/files`;
  const { fileBytes, processes, memoryBytes } = limits;
  const shared = { PATH: "/usr/local/bin:/usr/bin:/bin", LANG: "C.UTF-8" };
  const environment: Record<string, string> =
    level === "namespaces"
      ? { ...shared, HOME: "/work", TMPDIR: "/tmp" }
      : { ...shared, HOME: files, TMPDIR: files, HONE_SANDBOX: placed.marker };
  return {
    level,
    owner: process.pid,
    root: `${folder}/root`,
    files,
    user: firstUser + (process.pid % 10_000) * 10_000 + (users++ % 10_000),
    paths: interpreter?.paths ?? [],
    limits: {
      fileBytes,
      processes,
      cpuSeconds: Math.ceil(limits.cpuSeconds),
      addressSpace: interpreter?.limitAddressSpace ? memoryBytes : null,
    },
    cgroup,
    channel,
    command,
    environment,
  };
}

/** @param python runs the launcher, regardless of the program's language */
export const launchCommand = (python: Interpreter, plan: LaunchPlan): [string, ...string[]] => [
  python.program,
  "-I",
  "-S",
  "-B",
  launcher,
  JSON.stringify(plan),
];
