/**
 * The worker as an operating-system process: starts it in its own process group, keeps its log, watches its memory,
 * explains its end, and always ends it. It does not know messages.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, readFileSync } from "node:fs";
import { dirname } from "node:path";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { RunError } from "../../errors.ts";
import { makeFolder } from "../../files/make-folder.ts";
import { ownerMark } from "../../files/temporary-names.ts";
import { threadEnvironment, usableCores } from "./cores.ts";
import { describeDeath } from "./worker-death.ts";

export interface WorkerOptions {
  /** The Python executable. */
  python: string;
  /** Threads of the tensor library; 0 is one per core. */
  threads: number;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
}

export interface WorkerProcess {
  readonly pid: number;
  readonly input: Writable;
  readonly output: Readable;
  /** Resolves with the reason when the process has ended; never rejects. */
  readonly ended: Promise<RunError>;
  /** Ends the whole process group: end of input, then SIGTERM, then SIGKILL. Resolves when it has ended. */
  stop(): Promise<void>;
  /** SIGKILL to the whole group, now. */
  kill(): void;
}

/** The same relative path from src/ and from dist/. */
const workerDirectory = fileURLToPath(new URL("../../../worker", import.meta.url));
const keptLines = 50;
const memoryIntervalMs = 1000;
const graceMs = 3000;

/**
 * Sizes of torch's two caches of compiled matrix products on a CPU. Each number of rows needs its own product of about
 * 0.7 MB, ragged batches always bring new numbers, and a micro-batch uses about thirty. The default of 1024 would fill half
 * a gigabyte within a few steps and save no time. The user's environment takes precedence.
 */
const kernelCaches = { ONEDNN_PRIMITIVE_CACHE_CAPACITY: "64", LRU_CACHE_CAPACITY: "64" };

const running = new Set<ChildProcess>();

/** Signals the worker's process group. */
function signalGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    process.kill(process.platform === "win32" ? child.pid : -child.pid, signal);
  } catch (error) {
    // ESRCH: it has ended already.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

// Runs on a normal exit and on an uncaught error. If Node is killed, the worker notices through HONE_PARENT_PID.
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

/** @throws RunError when Python cannot be started at all */
export async function startWorker(options: WorkerOptions): Promise<WorkerProcess> {
  const { python, threads, logFile } = options;
  const child = spawn(python, ["-m", "hone_worker"], {
    detached: process.platform !== "win32",
    stdio: ["pipe", "pipe", "pipe"],
    env: {
      ...kernelCaches,
      ...process.env,
      ...threadEnvironment(threads, usableCores(), process.env),
      PYTHONPATH: [workerDirectory, process.env.PYTHONPATH]
        .filter(Boolean)
        .join(process.platform === "win32" ? ";" : ":"),
      PYTHONUNBUFFERED: "1",
      HONE_OWNER: ownerMark,
      HONE_PARENT_PID: String(process.pid),
    },
  });
  await new Promise<void>((resolve, reject) => {
    child.once("spawn", resolve);
    child.once("error", (cause) =>
      reject(new RunError(`cannot start Python (${python}): ${cause.message}`, { cause })),
    );
  });
  if (running.size === 0) process.on("exit", killAll);
  running.add(child);

  const pid = child.pid!;
  const lastLines = keepLog(child, logFile);
  let resident = residentBytes(pid);
  const watch = setInterval(() => {
    resident = residentBytes(pid) ?? resident;
  }, memoryIntervalMs);
  watch.unref();
  // A write to a worker that has just died fails here; its death is reported by `ended`, with the reason.
  child.stdin.on("error", () => {});

  const ended = new Promise<RunError>((resolve) => {
    child.once("close", (code, signal) => {
      clearInterval(watch);
      running.delete(child);
      if (running.size === 0) process.off("exit", killAll);
      resolve(describeDeath({ code, signal, residentBytes: resident, lastLines, logFile }));
    });
    // "close" waits for the pipes, which a grandchild may hold open, so the rest of the group is killed too.
    child.once("exit", () => signalGroup(child, "SIGKILL"));
  });

  async function stop(): Promise<void> {
    child.stdin.end();
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      if (await within(ended, graceMs)) return;
      signalGroup(child, signal);
    }
    await ended;
  }

  return { pid, input: child.stdin, output: child.stdout, ended, stop, kill: () => signalGroup(child, "SIGKILL") };
}

/** Writes the log to the file and keeps its last lines for the error message. */
function keepLog(child: ChildProcess, logFile: string | undefined): readonly string[] {
  const lines: string[] = [];
  let unfinished = "";
  if (logFile !== undefined) makeFolder(dirname(logFile));
  const file = logFile === undefined ? null : createWriteStream(logFile, { flags: "a" });
  // A full disk must not end the run because of its log.
  file?.on("error", (error) => process.stderr.write(`hone: cannot write ${logFile}: ${error.message}\n`));
  child.stderr?.setEncoding("utf8");
  child.stderr?.on("data", (text: string) => {
    file?.write(text);
    const parts = (unfinished + text).split("\n");
    unfinished = parts.pop() ?? "";
    lines.push(...parts.filter((line) => line.trim() !== ""));
    lines.splice(0, Math.max(0, lines.length - keptLines));
  });
  child.stderr?.on("end", () => {
    if (unfinished.trim() !== "") lines.push(unfinished);
    file?.end();
  });
  return lines;
}

async function within(promise: Promise<unknown>, milliseconds: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), milliseconds);
  });
  const inTime = await Promise.race([promise.then(() => true), late]);
  clearTimeout(timer);
  return inTime;
}
