/** Starts a long-running program in its own process group, keeps its log, and reports why it ended. It ends with Hone. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import { createWriteStream, readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname } from "node:path";
import type { Readable, Writable } from "node:stream";
import { RunError } from "./errors.ts";
import { makeFolder } from "./files.ts";

export interface ProcessOptions {
  /** For the error message, such as "Python". */
  name: string;
  command: string;
  args: readonly string[];
  env: NodeJS.ProcessEnv;
  /** `pipes`: for messages, and standard error is the log. `log`: all output is the log, and there is no input. */
  channel: "pipes" | "log";
  /** The log is appended here. */
  logFile?: string | undefined;
  /** Called with each line of the log. */
  onLine?: (line: string) => void;
  /** Seconds that it has to end by itself. */
  graceSeconds: number;
}

export interface RunningProcess {
  readonly pid: number;
  /** The last lines of its log so far. */
  readonly lastLines: readonly string[];
  /** Resolves when the process has ended; never rejects. */
  readonly ended: Promise<Death>;
  /** Ends the whole process group: end of input if it has one, SIGTERM, SIGKILL. Resolves when it has ended. */
  stop(): Promise<void>;
  /** SIGKILL to the whole group, now. */
  kill(): void;
}

/** With `channel: "pipes"`. */
export interface PipedProcess extends RunningProcess {
  readonly input: Writable;
  readonly output: Readable;
}

const keptLines = 200;
const memoryIntervalMs = 1000;

const running = new Set<ChildProcess>();

function signalGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    process.kill(process.platform === "win32" ? child.pid : -child.pid, signal);
  } catch (error) {
    // ESRCH: it has ended already.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

// Runs on a normal exit and on an uncaught error, but not if Node is killed.
function killAll(): void {
  for (const child of running) signalGroup(child, "SIGKILL");
}

function residentBytes(pid: number): number | null {
  try {
    const kilobytes = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
    return kilobytes === undefined ? null : Number(kilobytes) * 1024;
  } catch {
    return null; // Not Linux, or the process has ended.
  }
}

/** How many processes the kernel has killed because memory ran out. */
function memoryKills(): number | null {
  try {
    const count = /^oom_kill (\d+)$/m.exec(readFileSync("/proc/vmstat", "utf8"))?.[1];
    return count === undefined ? null : Number(count);
  } catch {
    return null; // Not Linux.
  }
}

/** @throws RunError when the program cannot be started at all */
export function startProcess(options: ProcessOptions & { channel: "pipes" }): Promise<PipedProcess>;
export function startProcess(options: ProcessOptions): Promise<RunningProcess>;
export async function startProcess(options: ProcessOptions): Promise<RunningProcess | PipedProcess> {
  const { name, command, args, env, channel, logFile, onLine, graceSeconds } = options;
  const child = spawn(command, args, {
    detached: process.platform !== "win32",
    stdio: [channel === "pipes" ? "pipe" : "ignore", "pipe", "pipe"],
    env,
  });
  await new Promise<void>((resolve, reject) => {
    child.once("spawn", resolve);
    child.once("error", (cause) =>
      reject(new RunError(`cannot start ${name} (${command}): ${cause.message}`, { cause })),
    );
  });
  if (running.size === 0) process.on("exit", killAll);
  running.add(child);

  const pid = child.pid!;
  const { stdin, stdout, stderr } = child;
  const { lastLines, written } = keepLog(channel === "pipes" ? [stderr!] : [stdout!, stderr!], logFile, onLine);
  const killsBefore = memoryKills();
  let resident = residentBytes(pid);
  const watch = setInterval(() => {
    resident = residentBytes(pid) ?? resident;
  }, memoryIntervalMs);
  watch.unref();
  // A write to a process that has just died fails here; its death is reported by `ended`, with the reason.
  stdin?.on("error", () => {});

  const ended = new Promise<Death>((resolve) => {
    child.once("close", (code, signal) => {
      clearInterval(watch);
      running.delete(child);
      if (running.size === 0) process.off("exit", killAll);
      // The log must be complete before the end is reported.
      const kills = memoryKills();
      const facts = { memoryKills: kills === null || killsBefore === null ? null : kills - killsBefore };
      void written.then(() => resolve({ code, signal, residentBytes: resident, ...facts, lastLines, logFile }));
    });
    // "close" waits for the pipes, which a grandchild may hold open, so the rest of the group is killed too.
    child.once("exit", () => signalGroup(child, "SIGKILL"));
  });

  async function stop(): Promise<void> {
    stdin?.end();
    if (stdin && (await within(ended, graceSeconds))) return;
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      signalGroup(child, signal);
      if (await within(ended, graceSeconds)) return;
    }
    await ended;
  }

  const started = { pid, lastLines, ended, stop, kill: () => signalGroup(child, "SIGKILL") };
  return channel === "pipes" ? { ...started, input: stdin!, output: stdout! } : started;
}

interface Log {
  lastLines: readonly string[];
  /** Resolves when the streams have ended and the log file is complete. */
  written: Promise<void>;
}

/** Writes the log to the file and keeps its last lines for the error message. */
function keepLog(streams: readonly Readable[], logFile: string | undefined, onLine?: (line: string) => void): Log {
  const lines: string[] = [];
  if (logFile !== undefined) makeFolder(dirname(logFile));
  const file = logFile === undefined ? null : createWriteStream(logFile, { flags: "a" });
  // A full disk must not end the run because of its log.
  file?.on("error", (error) => process.stderr.write(`hone: cannot write ${logFile}: ${error.message}\n`));
  const written = new Promise<void>((resolve) => (file === null ? resolve() : file.once("close", resolve)));
  let open = streams.length;
  for (const stream of streams) {
    let unfinished = "";
    stream.setEncoding("utf8");
    stream.on("data", (text: string) => {
      file?.write(text);
      const parts = (unfinished + text).split("\n");
      unfinished = parts.pop() ?? "";
      if (onLine) for (const line of parts) onLine(line);
      lines.push(...parts.filter((line) => line.trim() !== ""));
      lines.splice(0, Math.max(0, lines.length - keptLines));
    });
    stream.on("close", () => {
      if (unfinished.trim() !== "") lines.push(unfinished);
      if (--open === 0) file?.end();
    });
  }
  return { lastLines: lines, written };
}

async function within(promise: Promise<unknown>, seconds: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), seconds * 1000);
  });
  const inTime = await Promise.race([promise.then(() => true), late]);
  clearTimeout(timer);
  return inTime;
}

// Kills the process groups of started programs when this process ends, even by `kill -9`, which does not run handlers.

/** Reads "+ GROUP" and "- GROUP" until this process ends, and kills the groups that are left. */
const script = `
groups=" "
while read -r sign group; do
  if [ "$sign" = + ]; then groups="$groups$group "
  else groups="\${groups%% $group *} \${groups#* $group }"
  fi
done
for group in $groups; do kill -s KILL -- "-$group"; done
`;

let guard: Writable | undefined;

/** @returns a function to call when the group has ended */
export function guardGroup(group: number): () => void {
  guard ??= startGuard();
  guard.write(`+ ${group}\n`);
  return () => guard?.write(`- ${group}\n`);
}

function startGuard(): Writable {
  // A group of its own: Ctrl-C in the terminal does not reach it.
  const child = spawn("sh", ["-c", script], { stdio: ["pipe", "ignore", "ignore"], detached: true });
  // Without sh, only this process itself kills programs.
  child.on("error", () => {});
  child.stdin.on("error", () => {});
  child.unref();
  (child.stdin as Writable & { unref(): void }).unref();
  return child.stdin;
}

// Explains why a program that should still be running has ended.

export interface Death {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Resident memory when last measured; null if the system does not report it. */
  residentBytes: number | null;
  /** Processes that the kernel killed for memory while it ran, on the whole machine; null if the system does not report it. */
  memoryKills: number | null;
  /** The last lines of its log. */
  lastLines: readonly string[];
  /** Why it ended, by its own log. */
  cause?: string | undefined;
  logFile: string | undefined;
}

export interface ProgramDescription {
  /** Such as "the local engine's worker". */
  name: string;
  /** What to do after an end by one of these signals. */
  hints: { SIGKILL: string } & Partial<Record<NodeJS.Signals, string>>;
}

interface Meaning {
  meaning: string;
  hint?: string;
}

/** Why SIGKILL was not the kernel's answer to a lack of memory. */
const fromOutside: Meaning = {
  meaning: "another program killed it (signal 9); the kernel killed no process for memory meanwhile",
  hint: "Look for what ends processes here, such as a job scheduler, a container's limits or a memory daemon.",
};

const resume = "The run can be resumed from its last checkpoint.";

const meanings: Partial<Record<NodeJS.Signals, Meaning>> = {
  SIGKILL: { meaning: "most likely the system killed it because memory ran out" },
  SIGSEGV: { meaning: "native code (torch or a driver) accessed invalid memory", hint: "Run `hone doctor`." },
  SIGBUS: {
    meaning: "a file that was mapped into memory shrank, or the disk or shared memory is full",
    hint: "Check free disk space, and do not change the model's files during a run.",
  },
  SIGILL: {
    meaning: "this processor does not support an instruction that torch uses",
    hint: "Run on another machine.",
  },
  SIGABRT: { meaning: "native code aborted; its message is above", hint: "Run `hone doctor`." },
  SIGTERM: { meaning: "another program terminated it", hint: resume },
  SIGINT: { meaning: "it was interrupted", hint: resume },
};

const signalNumbers: Record<number, NodeJS.Signals> = {
  4: "SIGILL",
  6: "SIGABRT",
  7: "SIGBUS",
  9: "SIGKILL",
  11: "SIGSEGV",
  15: "SIGTERM",
};

const shownLines = 12;

/** How the program ended, what that means, the log's last lines, and what to do. */
export function describeDeath(death: Death, { name, hints }: ProgramDescription): { message: string; hint: string } {
  // A shell or container that ran the program reports a signal as 128 + its number.
  const signal =
    death.signal ?? (death.code !== null && death.code > 128 ? (signalNumbers[death.code - 128] ?? null) : null);
  const isOutside = signal === "SIGKILL" && death.memoryKills === 0;
  const known = isOutside ? fromOutside : signal === null ? undefined : meanings[signal];
  const how = death.signal === null ? `with exit code ${death.code}` : `by ${death.signal}`;
  const why = known?.meaning ?? death.cause;
  const memory =
    signal === "SIGKILL" && death.residentBytes !== null
      ? ` It used ${(death.residentBytes / 2 ** 30).toFixed(1)} GiB of memory when last measured.`
      : "";
  const lines = death.lastLines.slice(-shownLines).map((line) => `    ${line}`);
  const said = lines.length > 0 ? `\n  Its last output:\n${lines.join("\n")}` : "";
  const log = death.logFile === undefined ? "" : ` Its log: ${death.logFile}`;
  const hint =
    (signal && !isOutside ? hints[signal] : undefined) ??
    known?.hint ??
    `${death.cause === undefined ? "The output above shows the cause. " : ""}\`hone doctor\` checks the installation.`;
  return {
    message: `${name} ended ${how}${why === undefined ? "" : `: ${why.replace(/\.$/, "")}`}.${memory}${said}`,
    hint: `${hint}${log}`,
  };
}

/** Below the ports that systems give to outgoing connections, which could take one before it is used. */
const range = { first: 15_000, end: 32_768 };
const attempts = 100;

/**
 * Finds a TCP port of this machine on which nothing listens, for a program that cannot choose one itself.
 *
 * @throws Error when none is found
 */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < attempts; attempt++) {
    const port = randomInt(range.first, range.end);
    const server = createServer().listen(port, "127.0.0.1");
    try {
      await once(server, "listening");
    } catch {
      continue; // Taken.
    }
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
  throw new Error(`none of ${attempts} ports from ${range.first} to ${range.end - 1} is free`);
}

/** On Linux, sends SIGKILL to all processes whose environment contains one of these markers, also to those that left their group. */
export function killMarked(markers: readonly string[]): void {
  if (process.platform !== "linux") return;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const environment = readFileSync(`/proc/${pid}/environ`, "latin1");
      if (markers.some((marker) => environment.includes(marker))) process.kill(Number(pid), "SIGKILL");
    } catch {
      // It belongs to another user, or has ended.
    }
  }
}
