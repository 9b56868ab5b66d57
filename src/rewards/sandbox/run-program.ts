/** One program in one sandbox, from its files to its result. Whatever happens, nothing of it is left behind. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, normalize } from "node:path";
import type { Readable } from "node:stream";
import { RunError, UserError } from "../../errors.ts";
import { commandLine } from "./command-line.ts";
import { findInterpreter } from "./interpreters.ts";
import { type Family, watchFamily } from "./process-table.ts";
import type { Isolation, SandboxLimits, SandboxProgram, SandboxResult } from "./types.ts";
import { watch } from "./watcher.ts";

const setUpSeconds = 30;
const mebibyte = 2 ** 20;

export async function runProgram(isolation: Isolation, program: SandboxProgram): Promise<SandboxResult> {
  program.signal?.throwIfAborted();
  const limits = withDefaults(program.limits);
  const [name, ...args] = program.command;
  const interpreter = name === "python" || name === "node" ? await findInterpreter(name) : undefined;
  const command = interpreter ? [interpreter.program, ...interpreter.args, ...args] : [name, ...args];
  const folder = await mkdtemp(join(tmpdir(), "hone-sandbox-"));
  try {
    await mkdir(join(folder, "root"));
    await writeFiles(join(folder, "files"), program.files ?? {});
    const line = commandLine(isolation.level, { folder, program: command, interpreter, limits });
    return await runCommand(line, { isolation, folder, limits, program });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function withDefaults(given: Partial<SandboxLimits> = {}): SandboxLimits {
  const { cpuSeconds = 10 } = given;
  const bytes = { memoryBytes: 512 * mebibyte, fileBytes: 64 * mebibyte, outputBytes: mebibyte };
  return { cpuSeconds, seconds: 3 * cpuSeconds, processes: 64, ...bytes, ...given };
}

async function writeFiles(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  await mkdir(folder);
  for (const [name, text] of Object.entries(files)) {
    const path = normalize(join(folder, name));
    if (!path.startsWith(`${folder}/`)) {
      throw new UserError(`the sandbox's file ${JSON.stringify(name)} would lie outside its folder`, {
        hint: "name files by a path relative to the work folder, without ..",
      });
    }
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
  }
}

interface Running {
  isolation: Isolation;
  folder: string;
  limits: SandboxLimits;
  program: SandboxProgram;
}

async function runCommand([program, ...args]: [string, ...string[]], running: Running): Promise<SandboxResult> {
  const { isolation, folder, limits, program: asked } = running;
  const work = join(folder, "files");
  const marker = `HONE_SANDBOX=${randomUUID()}`;
  const child = spawn(program, args, {
    cwd: work,
    detached: true,
    stdio: ["pipe", "pipe", "pipe", "pipe"],
    env: {
      ...{ PATH: "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", LANG: "C.UTF-8", HOME: work, TMPDIR: work },
      HONE_SANDBOX: marker.slice(marker.indexOf("=") + 1),
    },
  });
  const family = child.pid === undefined ? undefined : watchFamily(child.pid, marker);
  const closed = whenClosed(child);
  try {
    const ready = await Promise.race([firstWord(child), closed.then(() => false), timeOut(setUpSeconds, () => false)]);
    if (!ready) {
      family?.kill();
      const { stderr } = await closed;
      throw new RunError(`the sandbox could not be set up: ${stderr.trim() || "it said nothing"}`);
    }
    return await followProgram(child, family!, closed, limits, asked);
  } finally {
    // At level `process` something may have left its group; inside namespaces all died with the first.
    if (isolation.level === "process") family?.kill();
  }
}

interface Closed {
  code: number | null;
  stdout: string;
  stderr: string;
}

async function followProgram(
  child: ChildProcess,
  family: Family,
  closed: Promise<Closed>,
  limits: SandboxLimits,
  { stdin = "", signal }: SandboxProgram,
): Promise<SandboxResult> {
  const start = performance.now();
  let ended: SandboxResult["ended"] | undefined;
  let peakMemoryBytes = 0;
  const stop = (why?: SandboxResult["ended"]) => {
    ended ??= why;
    family.kill();
  };
  const onAbort = () => stop();
  signal?.addEventListener("abort", onAbort, { once: true });
  const timer = setTimeout(() => stop("time"), limits.seconds * 1000);
  const unwatch = watch(family, ({ processes, residentBytes }) => {
    peakMemoryBytes = Math.max(peakMemoryBytes, residentBytes);
    if (residentBytes > limits.memoryBytes) stop("memory");
    // Two of them are the sandbox's own.
    else if (processes > limits.processes + 2) stop("processes");
  });
  for (const stream of [child.stdout!, child.stderr!]) limitOutput(stream, limits.outputBytes, () => stop("output"));
  // A program may end without reading what it was given.
  child.stdin!.on("error", () => {});
  child.stdin!.end(stdin);
  // The program's own end counts, not that of processes it left behind with its pipes.
  const exited = new Promise<number | null>((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) resolve(child.exitCode);
    child.once("exit", resolve);
  });
  try {
    const code = await exited;
    family.kill();
    const { stdout, stderr } = await closed;
    signal?.throwIfAborted();
    const seconds = (performance.now() - start) / 1000;
    const exitCode = code !== null && code <= 128 ? code : null;
    // 128 + SIGXCPU, or SIGXCPU itself: the kernel's own limit of processor time.
    const outOfTime = code === 128 + 24 || child.signalCode === "SIGXCPU";
    return { ended: ended ?? (outOfTime ? "time" : "exit"), exitCode, stdout, stderr, seconds, peakMemoryBytes };
  } finally {
    clearTimeout(timer);
    unwatch();
    signal?.removeEventListener("abort", onAbort);
  }
}

function whenClosed(child: ChildProcess): Promise<Closed> {
  const texts = [child.stdout!, child.stderr!].map(collect);
  return new Promise((resolve) => {
    child.once("error", ({ message }) => resolve({ code: null, stdout: "", stderr: message }));
    child.once("close", (code) => resolve({ code, stdout: texts[0]!(), stderr: texts[1]!() }));
  });
}

function collect(stream: Readable): () => string {
  const pieces: Buffer[] = [];
  stream.on("data", (piece: Buffer) => pieces.push(piece));
  return () => Buffer.concat(pieces).toString("utf8");
}

function limitOutput(stream: Readable, bytes: number, onExceeded: () => void): void {
  let seen = 0;
  stream.on("data", (piece: Buffer) => {
    seen += piece.length;
    if (seen <= bytes) return;
    stream.removeAllListeners("data");
    stream.resume();
    onExceeded();
  });
}

const firstWord = (child: ChildProcess) =>
  new Promise<boolean>((resolve) => (child.stdio[3] as Readable).once("data", () => resolve(true)));

const timeOut = <Value>(seconds: number, value: () => Value) =>
  new Promise<Value>((resolve) => {
    setTimeout(() => resolve(value()), seconds * 1000).unref();
  });
