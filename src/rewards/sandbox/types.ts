/** What runs in a sandbox, within which limits, and what came of it. */

/** What a sandbox keeps away from the program in it, as data: shown in the run, checked by tests. */
export interface Isolation {
  /** `namespaces`: Linux namespaces of its own; `process`: a process group with limits, and what the kernel offers else. */
  level: "namespaces" | "process";
  /** The program cannot reach any network, including this machine's own. */
  network: boolean;
  /** It sees the system's programs (read-only) and its own work folder, nothing else of the machine. */
  files: boolean;
  /** It cannot see or signal other processes. */
  processes: boolean;
  /** It cannot read the environment variables or the memory of this user's other processes. */
  secrets: boolean;
  /** None of its processes outlives it. */
  lifetime: boolean;
  /** Memory and number of its processes are limited. */
  resources: boolean;
  /**
   * How memory is limited: by the kernel (`cgroup`), by looking at all processes ten times a second (`watched`; memory
   * of sockets and pipes is not counted), or not at all.
   */
  memory: "cgroup" | "watched" | "unlimited";
}

export interface SandboxLimits {
  /** Processor time of one process. Default 10. */
  cpuSeconds: number;
  /** Wall-clock time from the program's start. Default 3 times `cpuSeconds`: a busy machine is not the program's fault. */
  seconds: number;
  /** Of all processes together. Default 512 MiB. */
  memoryBytes: number;
  /** Processes and threads at one time. Default 64. */
  processes: number;
  /** All files of the work folder together (one file, at level `process`). Default 64 MiB. */
  fileBytes: number;
  /** Standard output and standard error, each. Default 1 MiB. */
  outputBytes: number;
}

export interface SandboxProgram {
  /** Program and arguments; `python` and `node` are found by themselves. The work folder is the current one. */
  command: readonly [program: string, ...args: string[]];
  /** Files of the work folder by their relative path. */
  files?: Readonly<Record<string, string>>;
  stdin?: string;
  limits?: Partial<SandboxLimits>;
  /** Ends the program. */
  signal?: AbortSignal;
}

export interface SandboxResult {
  /** What ended it: itself, or the limit that it met. */
  ended: "exit" | "time" | "memory" | "processes" | "output" | "files";
  /** Null when a signal ended it. */
  exitCode: number | null;
  stdout: string;
  stderr: string;
  seconds: number;
  /** The most that all its processes held at one of the looks taken ten times a second. */
  peakMemoryBytes: number;
}

export interface Sandbox {
  readonly isolation: Isolation;
  /**
   * A program that fails is an answer, not an error.
   * @throws RunError when the sandbox itself cannot be set up; the signal's reason when aborted
   */
  run(program: SandboxProgram): Promise<SandboxResult>;
  /**
   * Two programs at the same time, in two sandboxes. What one writes to its descriptor 4, the other reads from its own. The
   * second is ended when the first has ended.
   */
  runConnected(first: SandboxProgram, second: SandboxProgram): Promise<[SandboxResult, SandboxResult]>;
}
