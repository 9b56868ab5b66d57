/** A sandbox's isolation, limits, programs and results. */
import { isUtf8 } from "node:buffer";
import { homedir } from "node:os";
import { isAbsolute, relative } from "node:path";
import { UserError } from "../../base/errors.ts";
import { locatePython } from "../../base/python.ts";

/** Levels that need no container engine. */
export type LocalLevel = "namespaces" | "process";

/** What a sandbox hides from its program: shown in the run, checked by tests. */
export interface Isolation {
  /** `namespaces`: its own Linux namespaces; `process`: a process group with limits; `container`: a container of its own. */
  level: LocalLevel | "container";
  /** The program cannot reach any network, including this machine's own. */
  network: boolean;
  /** It sees only the system's programs (read-only) and its own work folder. */
  files: boolean;
  /** It cannot see or signal other processes. */
  processes: boolean;
  /** It cannot read the environment variables or the memory of this user's other processes. */
  secrets: boolean;
  /** All of its processes end with it. */
  lifetime: boolean;
  /** Memory and number of its processes are limited. */
  resources: boolean;
  /**
   * How memory is limited: by the kernel (`cgroup`), by checking all processes ten times a second (`watched`, without the
   * memory of sockets and pipes), or not at all.
   */
  memory: "cgroup" | "watched" | "unlimited";
}

/** A program that exceeds one of them is ended. */
export interface SandboxLimits {
  /** Processor time of one process. Default 10. */
  cpuSeconds: number;
  /** Wall-clock time from the program's start. Default 3 times `cpuSeconds`, since the machine may be busy. */
  seconds: number;
  /** Memory of all processes together. Default 512 MiB. */
  memoryBytes: number;
  /** Concurrent processes and threads; at level `process`, processes and eight times as many threads. Default 64. */
  processes: number;
  /**
   * Size of all files of the work folder. At level `process`, everything that is written, including what is replaced or
   * removed, may be four times as much. Default 64 MiB.
   */
  fileBytes: number;
  /** Size of standard output and of standard error. Default 1 MiB. */
  outputBytes: number;
}

/** What to run. */
export interface SandboxProgram {
  /** Program and arguments; `python` and `node` are located automatically. Runs in the work folder. */
  command: readonly [program: string, ...args: string[]];
  /** Files of the work folder by their relative path. */
  files?: Readonly<Record<string, string>>;
  stdin?: string;
  limits?: Partial<SandboxLimits> | undefined;
  /** Ends the program. */
  signal?: AbortSignal | undefined;
}

/** How a program ended. */
export interface SandboxResult {
  /** `exit`, or the limit that was exceeded. */
  ended: "exit" | "time" | "memory" | "processes" | "output" | "files";
  /** Null if a signal ended it. */
  exitCode: number | null;
  /** Bytes that are not UTF-8 are lone surrogates, which no decoded text contains. */
  stdout: string;
  stderr: string;
  seconds: number;
  /** Peak memory of all its processes, sampled ten times a second. */
  peakMemoryBytes: number;
}

/** The text of what a program wrote. A byte that is not UTF-8 does not become U+FFFD, which the program could have meant. */
export function outputText(bytes: Buffer): string {
  const text = bytes.toString("utf8");
  return isUtf8(bytes) ? text : text.replaceAll("\ufffd", "\udcff");
}

/** Runs programs that models wrote. */
export interface Sandbox {
  readonly isolation: Isolation;
  /**
   * A program that fails is a result, not an error.
   * @throws RunError if the sandbox cannot be set up; the signal's reason if aborted
   */
  run(program: SandboxProgram): Promise<SandboxResult>;
  /**
   * Runs two programs in two sandboxes. Each reads from its descriptor 4 what the other writes to its own. The second is
   * ended when the first ends.
   */
  runConnected(first: SandboxProgram, second: SandboxProgram): Promise<[SandboxResult, SandboxResult]>;
}

// Locates python and node, so that a sandbox can show them to a program and hide everything else.

export interface Interpreter {
  /** Absolute path. */
  program: string;
  args: readonly string[];
  /** Folders and files that it needs in addition to the system's own. */
  paths: readonly string[];
  /** False for V8, which reserves far more address space than it uses. */
  limitAddressSpace: boolean;
}

const found = new Map<string, Promise<Interpreter>>();

/** @throws UserError if the interpreter is missing, or if its folder contains the user's home folder */
export function findInterpreter(name: "python" | "node"): Promise<Interpreter> {
  const known = found.get(name) ?? (name === "node" ? findNode() : findPython());
  found.set(name, known);
  return known;
}

async function findNode(): Promise<Interpreter> {
  // A single file that needs only the system's libraries.
  return { program: process.execPath, args: [], paths: [process.execPath], limitAddressSpace: false };
}

async function findPython(): Promise<Interpreter> {
  const python = await locatePython(process.env.HONE_SANDBOX_PYTHON ?? "python3").catch((cause: Error) => {
    throw new UserError(`the sandbox found no Python to run code with: ${cause.message}`, {
      hint: "install python3, or set the environment variable HONE_SANDBOX_PYTHON to an executable",
      cause,
    });
  });
  for (const prefix of python.prefixes) {
    if (holds(prefix, homedir())) {
      throw new UserError(`${python.executable} is installed in ${prefix}, which contains the home folder`, {
        hint: "set the environment variable HONE_SANDBOX_PYTHON to a Python that is installed elsewhere",
      });
    }
  }
  // -I: no site packages of the user, no environment; -B: the folders are read-only.
  return { program: python.executable, args: ["-I", "-B"], paths: python.prefixes, limitAddressSpace: true };
}

function holds(folder: string, inner: string): boolean {
  const way = relative(folder, inner);
  return way === "" || (!way.startsWith("..") && !isAbsolute(way));
}
