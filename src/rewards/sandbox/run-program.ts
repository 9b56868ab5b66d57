/** Writes and removes the folder of a program. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join, normalize } from "node:path";
import type { Duplex, Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { RunError, UserError } from "../../base/errors.ts";
import { isOwnerGone, ownerMark } from "../../base/files.ts";
import { killMarked } from "../../base/processes.ts";
import {
  type Cgroup,
  type Family,
  listProcesses,
  openCgroup,
  removeLeftCgroups,
  threadsPerProcess,
  watchFamily,
} from "./limits.ts";
import {
  findInterpreter,
  type Interpreter,
  type LocalLevel,
  outputText,
  type SandboxLimits,
  type SandboxProgram,
  type SandboxResult,
} from "./types.ts";

async function writeFiles(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  await mkdir(folder);
  for (const [name, text] of Object.entries(files)) {
    const path = normalize(join(folder, name));
    if (!path.startsWith(`${folder}/`)) {
      throw new UserError(`the sandbox's file ${JSON.stringify(name)} is outside its folder`, {
        hint: "use a path relative to the work folder, without ..",
      });
    }
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
  }
}

const remover = fileURLToPath(new URL("../../../worker/sandbox/work_folder.py", import.meta.url));
const maxSeconds = 10;

/** Removes a folder that an untrusted program filled. Does not wait for more than ten seconds: the rest is removed meanwhile. */
async function removeProgramFolder(folder: string): Promise<void> {
  if (await removeFlat(folder)) return;
  const { program } = await findInterpreter("python");
  const removal = promisify(execFile)(program, ["-I", "-S", "-B", remover, folder]);
  const late = sleep(maxSeconds * 1000, "late" as const, { ref: false });
  if ((await Promise.race([removal, late])) !== "late") return;
  process.emitWarning(`the sandbox's folder ${folder} takes more than ${maxSeconds} seconds to remove`);
  removal.catch(({ message }: Error) =>
    process.emitWarning(`the sandbox's folder ${folder} was not removed: ${message}`),
  );
}

/** Saves starting a process for most programs, which create no folder. */
async function removeFlat(folder: string): Promise<boolean> {
  try {
    const entries = await readdir(join(folder, "files"), { withFileTypes: true });
    if (entries.length > 1000 || entries.some((entry) => entry.isDirectory())) return false;
    await rm(folder, { recursive: true });
    return true;
  } catch {
    return false; // The folder is closed, or a name is not UTF-8.
  }
}

// Removes what sandboxes of killed processes left: folders, cgroups and processes.

const prefix = "hone-sandbox-";

/** Creates a folder for a program. Its name contains the process that removes it. */
const createFolder = () => mkdtemp(join(tmpdir(), `${prefix}${ownerMark}-`));

const isLeft = (name: string) => name.startsWith(prefix) && isOwnerGone(name);

export async function removeLeftovers(): Promise<void> {
  removeLeftCgroups(isLeft);
  const left = (await readdir(tmpdir())).filter(isLeft);
  if (left.length > 0) killMarked(left.map((name) => `HONE_SANDBOX=${name}`));
  for (const name of left) {
    // Another user's folder stays: the system's temporary folder is shared.
    await removeProgramFolder(join(tmpdir(), name)).catch(() => {});
  }
}

// The input of the launcher (worker/sandbox/launch.py): everything that a program may do and use.

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

// Runs a program in a sandbox. Removes everything afterwards, regardless of how it ends.

const setUpSeconds = 30;
/** Time for the launcher to end its processes before this process does, and for output to arrive afterwards. */
const graceSeconds = 5;
const mebibyte = 2 ** 20;

/** A connection with descriptor 4 of a program. */
export interface Connection {
  /** Called once the program runs. */
  onChannel(channel: Duplex): void;
  /** Ends the program when it resolves, with the exceeded limit if any. */
  over: Promise<SandboxResult["ended"] | undefined>;
}

export async function runProgram(
  level: LocalLevel,
  program: SandboxProgram,
  connection?: Connection,
): Promise<SandboxResult> {
  program.signal?.throwIfAborted();
  const limits = withDefaults(program.limits);
  const [name, ...args] = program.command;
  const interpreter = name === "python" || name === "node" ? await findInterpreter(name) : undefined;
  const command = interpreter ? [interpreter.program, ...interpreter.args, ...args] : [name, ...args];
  const python = await findInterpreter("python");
  const folder = await createFolder();
  const marker = basename(folder);
  let cgroup: Cgroup | undefined;
  try {
    await mkdir(join(folder, "root"));
    await writeFiles(join(folder, "files"), program.files ?? {});
    cgroup = openCgroup(marker, limits);
    const placed = { folder, command, interpreter, limits, marker };
    const plan = launchPlan(level, { ...placed, cgroup: cgroup ?? null, channel: connection !== undefined });
    return await launch(launchCommand(python, plan), { level, folder, marker, limits, program, cgroup, connection });
  } finally {
    cgroup?.remove();
    // At level `namespaces` the program had a copy of its folder.
    await (level === "process" ? removeProgramFolder(folder) : rm(folder, { recursive: true }));
  }
}

export function withDefaults(given: Partial<SandboxLimits> = {}): SandboxLimits {
  const { cpuSeconds = 10 } = given;
  const bytes = { memoryBytes: 512 * mebibyte, fileBytes: 64 * mebibyte, outputBytes: mebibyte };
  return { cpuSeconds, seconds: 3 * cpuSeconds, processes: 64, ...bytes, ...given };
}

interface Running {
  level: LocalLevel;
  folder: string;
  /** Marks the processes of this sandbox in their environment. */
  marker: string;
  limits: SandboxLimits;
  program: SandboxProgram;
  cgroup: Cgroup | undefined;
  connection: Connection | undefined;
}

async function launch([launcher, ...args]: [string, ...string[]], running: Running): Promise<SandboxResult> {
  const { level, folder, marker, connection } = running;
  const child = spawn(launcher, args, {
    cwd: join(folder, "files"),
    detached: true,
    stdio: ["pipe", "pipe", "pipe", "pipe", connection ? "pipe" : "ignore"],
    env: { PATH: "/usr/local/bin:/usr/bin:/bin", LANG: "C.UTF-8", HONE_SANDBOX: marker },
  });
  const family = child.pid === undefined ? undefined : watchFamily(child.pid, `HONE_SANDBOX=${marker}`);
  const outputs = [child.stdout, child.stderr].map((stream) => collect(stream as Readable));
  const ended = whenEnded(child);
  const reports = readReports(child.stdio[3] as Readable);
  try {
    const late = sleep(setUpSeconds * 1000, { failed: `it took more than ${setUpSeconds} seconds` }, { ref: false });
    const first = await Promise.race([reports.first, late, ended.then((failed) => ({ failed }))]);
    if ("failed" in first) {
      const stderr = outputs[1]?.().trim();
      throw new RunError(`the sandbox could not be set up: ${[first.failed, stderr].filter(Boolean).join(": ")}`);
    }
    connection?.onChannel(child.stdio[4] as Duplex);
    const { ended: limit, ...rest } = await follow(child, family as Family, ended, running);
    await letOutputEnd(child);
    const { exitCode, signal, over } = reports.last();
    // 24 is SIGXCPU, the kernel's limit of processor time.
    const why = limit ?? over ?? (running.cgroup?.ranOut() ? "memory" : signal === 24 ? "time" : "exit");
    const [stdout, stderr] = outputs.map((text) => text());
    return {
      ended: why,
      exitCode: why === "exit" ? exitCode : null,
      stdout: stdout ?? "",
      stderr: stderr ?? "",
      ...rest,
    };
  } finally {
    const runs = child.exitCode === null && child.signalCode === null;
    // At level `process` without a subreaper (not on Linux) a process may have left its group.
    if (runs || level === "process") endAll(running.cgroup, family);
    for (const stream of child.stdio) stream?.destroy();
  }
}

/** Ends all processes of a launcher that has not done so, or no longer can. */
function endAll(cgroup: Cgroup | undefined, family: Family | undefined): void {
  cgroup?.kill();
  family?.kill();
}

type Followed = Pick<SandboxResult, "seconds" | "peakMemoryBytes"> & { ended: SandboxResult["ended"] | undefined };

async function follow(
  child: ChildProcess,
  family: Family,
  whenEnded: Promise<string>,
  { limits, program: { stdin = "", signal }, cgroup, connection }: Running,
): Promise<Followed> {
  const start = performance.now();
  let [ended, peakMemoryBytes]: [Followed["ended"], number] = [undefined, 0];
  let force: NodeJS.Timeout | undefined;
  const stop = (why?: SandboxResult["ended"]) => {
    ended ??= why;
    child.kill("SIGTERM");
    force ??= setTimeout(() => endAll(cgroup, family), graceSeconds * 1000);
  };
  const onAbort = () => stop();
  signal?.addEventListener("abort", onAbort, { once: true });
  if (signal?.aborted) stop();
  connection?.over.then(stop);
  const timer = setTimeout(() => stop("time"), limits.seconds * 1000);
  const unwatch = watch(family, ({ processes, threads, residentBytes }) => {
    const bytes = cgroup?.bytes() ?? residentBytes;
    peakMemoryBytes = Math.max(peakMemoryBytes, bytes);
    if (cgroup ? cgroup.ranOut() : bytes > limits.memoryBytes) stop("memory");
    // Two processes are the sandbox's own.
    else if (processes > limits.processes + 2 || threads > threadsPerProcess * limits.processes) stop("processes");
  });
  for (const stream of [child.stdout, child.stderr]) {
    limitOutput(stream as Readable, limits.outputBytes, () => stop("output"));
  }
  // A program may end without reading its input.
  child.stdin?.on("error", () => {});
  child.stdin?.end(stdin);
  try {
    await whenEnded;
    signal?.throwIfAborted();
    return { ended, peakMemoryBytes, seconds: (performance.now() - start) / 1000 };
  } finally {
    clearTimeout(timer);
    clearTimeout(force);
    unwatch();
    signal?.removeEventListener("abort", onAbort);
  }
}

/** Resolves when the launcher has ended, which is after all of its processes. */
const whenEnded = (child: ChildProcess) =>
  new Promise<string>((resolve) => {
    child.once("error", ({ message }) => resolve(message));
    child.once("exit", (code, signal) => resolve(`the launcher ended with ${signal ?? `exit code ${code}`}`));
  });

/** Reads the rest of the pipes, but does not wait for an escaped process that keeps them open. */
async function letOutputEnd(child: ChildProcess): Promise<void> {
  const streams = [child.stdout, child.stderr].filter((stream) => stream && !stream.readableEnded);
  const ends = streams.map((stream) => new Promise((resolve) => stream?.once("close", resolve).once("end", resolve)));
  await Promise.race([Promise.all(ends), sleep(graceSeconds * 1000, undefined, { ref: false })]);
}

function collect(stream: Readable): () => string {
  const pieces: Buffer[] = [];
  stream.on("data", (piece: Buffer) => pieces.push(piece));
  return () => outputText(Buffer.concat(pieces));
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

type Seen = ReturnType<Family["look"]>;

const watched = new Map<Family, (seen: Seen) => void>();
let timer: NodeJS.Timeout | undefined;
const intervalMs = 100;

/** Reads the process table ten times a second for all running sandboxes. @returns ends the watch */
function watch(family: Family, onLook: (seen: Seen) => void): () => void {
  watched.set(family, onLook);
  timer ??= setInterval(lookAtAll, intervalMs);
  return () => {
    watched.delete(family);
    if (watched.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

function lookAtAll(): void {
  const table = listProcesses();
  for (const [family, onLook] of watched) onLook(family.look(table));
}

type Report = { ready: true } | { failed: string } | { exit: number } | { signal: number } | { over: "files" };

interface Reports {
  first: Promise<Report>;
  /** How the program ended. Both numbers are null if the launcher ended it, with the exceeded limit if that was the reason. */
  last(): { exitCode: number | null; signal: number | null; over: "files" | undefined };
}

/** Reads the launcher's reports from a descriptor that the program does not have. */
function readReports(stream: Readable): Reports {
  let text = "";
  const all = () =>
    text
      .split("\n")
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Report);
  const first = new Promise<Report>((resolve) => {
    stream.on("data", (piece: Buffer) => {
      text += piece;
      const [report] = all();
      if (report) resolve(report);
    });
  });
  const last = () => {
    const end = all().at(-1) ?? { ready: true };
    return {
      exitCode: "exit" in end ? end.exit : null,
      signal: "signal" in end ? end.signal : null,
      over: "over" in end ? end.over : undefined,
    };
  };
  return { first, last };
}

// Runs two connected programs in sandboxes, such as a program under test and its test.

/** Limit of the data that one program may send to the other. */
const maxBytes = 16 * 2 ** 20;
const reasonMilliseconds = 500;

/** @param run runs one program, with a channel */
export async function runConnected(
  run: (program: SandboxProgram, connection: Connection) => Promise<SandboxResult>,
  first: SandboxProgram,
  second: SandboxProgram,
): Promise<[SandboxResult, SandboxResult]> {
  const [one, other] = [connection(), connection()];
  Promise.all([one.channel, other.channel]).then(([left, right]) => {
    relay(left, right, one.end);
    relay(right, left, other.end);
  });
  const running = [run(first, one), run(second, other)] as const;
  // Also if it could not be started, or was aborted.
  running[0].finally(() => settled(running[1]).then(() => other.end())).catch(() => {});
  running[1].catch(() => one.end());
  await Promise.allSettled(running);
  return Promise.all(running);
}

/** The other program ends with its channel. If it reached a limit, that reason must arrive before it is ended. */
const settled = (run: Promise<unknown>): Promise<unknown> =>
  Promise.race([run.catch(() => {}), sleep(reasonMilliseconds, undefined, { ref: false })]);

interface Pending extends Connection {
  channel: Promise<Duplex>;
  end(why?: SandboxResult["ended"]): void;
}

function connection(): Pending {
  let [onChannel, end]: [Pending["onChannel"], Pending["end"]] = [() => {}, () => {}];
  const channel = new Promise<Duplex>((resolve) => {
    onChannel = resolve;
  });
  const over = new Promise<SandboxResult["ended"] | undefined>((resolve) => {
    end = resolve;
  });
  return { channel, over, onChannel, end };
}

function relay(from: Duplex, to: Duplex, end: Pending["end"]): void {
  let bytes = 0;
  from.on("data", (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > maxBytes) end("output");
  });
  // Either program may end, or close its side, at any time.
  from.on("error", () => to.end());
  from.pipe(to);
}
