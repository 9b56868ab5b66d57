/** Starts a long-running program in its own process group, keeps its log, and reports why it ended. It ends with Hone. */
import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, readFileSync } from "node:fs";
import { dirname } from "node:path";
import type { Readable, Writable } from "node:stream";
import { RunError } from "../errors.ts";
import { makeFolder } from "../files/make-folder.ts";
import type { Death } from "./describe-death.ts";

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
