/** The third level of isolation for code graders: a sandbox whose programs each run in a container of their own. */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { Semaphore } from "../../base/concurrency.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { type Connection, runConnected, withDefaults } from "../../rewards/sandbox/run-program.ts";
import {
  type Isolation,
  outputText,
  type Sandbox,
  type SandboxLimits,
  type SandboxProgram,
  type SandboxResult,
} from "../../rewards/sandbox/types.ts";
import { type Started, startContainer, type WarmCounts, type WarmQueue, warmQueue } from "./container.ts";
import { type Engine, type EngineName, findEngine } from "./engine.ts";

export interface ContainerSandboxOptions {
  /** An image with a shell and Python 3.8 or Node 18, or both. It is pulled if it is missing. */
  image: string;
  /** Default: Docker if it runs, else podman. */
  engine?: EngineName;
  /** Maximum number of concurrent programs. Default: the number of cores. */
  concurrency?: number;
  /** Containers that are started before they are needed. Default: 2, one for a program and one for its test. */
  warm?: number;
}

/** A sandbox that runs programs in containers. */
export interface ContainerSandbox extends Sandbox {
  counts(): WarmCounts;
  /** Gives back the containers that wait. They are also given back when this process ends. */
  close(): Promise<void>;
}

/** Processes of the container itself and threads of the runner, which count for the program's user. */
const ownProcesses = 10;
/** Each container's processes have a user of their own, because the kernel counts processes by user. */
const [firstUser, users] = [20_000, 40_000];
let lastUser = process.pid % users;

function flagsOf(engine: Engine, limits: SandboxLimits, enforced: Enforced): string[] {
  const { fileBytes, memoryBytes } = limits;
  const processes = String(limits.processes + ownProcesses);
  lastUser = (lastUser + 1) % users;
  const user = `${firstUser + lastUser}`;
  // Docker gives it the mode of the folder below it, which may be closed to the user.
  const owner = engine.name === "docker" ? `,uid=${user},gid=${user}` : "";
  const disk = (path: string) => ["--tmpfs", `${path}:rw,nosuid,nodev,size=${fileBytes},mode=1777${owner}`];
  return [
    ...["--network", "none", "--cap-drop", "ALL", "--user", `${user}:${user}`, "--workdir", "/work"],
    ...["--read-only", ...(engine.name === "podman" ? ["--read-only-tmpfs=false"] : [])],
    // The size of both together is the limit times two; the kernel limits each file.
    ...[...disk("/work"), ...disk("/tmp"), "--shm-size", "1m"],
    ...["-e", "HOME=/work", "-e", "TMPDIR=/tmp", "-e", "LANG=C.UTF-8"],
    ...["--ulimit", `nproc=${processes}:${processes}`, "--ulimit", "nofile=256:256", "--ulimit", "core=0:0"],
    ...(enforced.processes ? ["--pids-limit", processes] : []),
    ...(enforced.memory ? ["--memory", String(memoryBytes), "--memory-swap", String(memoryBytes)] : []),
  ];
}

/** Which limits of the engine the kernel holds: it needs cgroups for them. */
interface Enforced {
  memory: boolean;
  processes: boolean;
}

const probe = `cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; echo "pids"
cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; echo "python"
command -v python3 || command -v python; echo "node"; command -v node; echo "network"; cat /proc/net/route; true`;

/** Starts a container with limits, and reads which of them its kernel has. */
async function tryImage(
  engine: Engine,
  image: string,
): Promise<{ enforced: Enforced; found: Interpreters; network: boolean }> {
  const limits = withDefaults();
  const withLimits = { memory: true, processes: true };
  const none = { memory: false, processes: false };
  // An engine without cgroups may refuse the limits instead of ignoring them.
  const box = await startContainer(engine, image, flagsOf(engine, limits, withLimits)).catch(() =>
    startContainer(engine, image, flagsOf(engine, limits, none)),
  );
  try {
    const { exitCode, stdout, stderr } = await engine.run(["exec", box.id, "sh", "-c", probe]);
    if (exitCode !== 0) throw new UserError(`containers of ${image} cannot run programs: ${stderr.trim()}`);
    const [memory = "", pids = "", python = "", node = "", routes = ""] =
      stdout.split(/^(?:pids|python|node|network)$/m);
    const found = { python: python.trim().split("\n")[0], node: node.trim() };
    if (!found.python && !found.node) {
      throw new UserError(`${image} has neither Python nor Node, which codeTests needs to run programs`, {
        hint: 'use an image such as "python:3.13-slim"',
      });
    }
    return {
      enforced: {
        memory: memory.trim() === String(limits.memoryBytes),
        processes: pids.trim() === String(limits.processes + ownProcesses),
      },
      found: { ...(found.python ? { python: found.python } : {}), ...(found.node ? { node: found.node } : {}) },
      // Its first line is a heading.
      network: routes.trim().split("\n").length > 1,
    };
  } finally {
    await box.remove();
  }
}

/**
 * Each program runs in a container that is removed with it: without a network, rights, or writable files but two folders in
 * memory. `isolation` says which limits this machine's engine holds: without cgroups, memory is not limited.
 *
 * @throws UserError if no engine works, or the image has neither Python nor Node
 * @example
 * const sandbox = await containerSandbox({ image: "python:3.13-slim" });
 * await codeTests(reply.text, [{ stdin: "2 3\\n", stdout: "5\\n" }], { sandbox });
 */
export async function containerSandbox(options: ContainerSandboxOptions): Promise<ContainerSandbox> {
  const { image, concurrency = availableParallelism(), warm = 2 } = options;
  const engine = await findEngine(options.engine);
  const { enforced, found, network } = await tryImage(engine, image);
  if (network) throw new UserError(`a container of ${image} has a network although it was started without one`);
  const held = { network: true, files: true, processes: true, secrets: true, lifetime: true };
  const isolation: Isolation = {
    ...{ level: "container", ...held, resources: enforced.processes && enforced.memory },
    memory: enforced.memory ? "cgroup" : "unlimited",
  };
  const semaphore = new Semaphore(concurrency);
  type Ready = Started & { close(): Promise<void> };
  /** The limits of a container are those of its start. */
  let current: { key: string; queue: WarmQueue<Ready> } | undefined;
  const totals = { started: 0, ready: 0, unused: 0 };

  async function changeTo(key: string, queue: WarmQueue<Ready>): Promise<void> {
    const former = current;
    current = { key, queue };
    await former?.queue.close();
    const { started = 0, ready = 0, unused = 0 } = former?.queue.counts() ?? {};
    totals.started += started;
    totals.ready += ready;
    totals.unused += unused;
  }

  async function run(program: SandboxProgram, connection?: Connection) {
    program.signal?.throwIfAborted();
    const limits = withDefaults(program.limits);
    const { seconds: _, cpuSeconds: _2, outputBytes: _3, ...fixed } = limits;
    const key = JSON.stringify(fixed);
    if (current?.key !== key) {
      const start = async () => {
        const box = await startContainer(engine, image, flagsOf(engine, limits, enforced));
        return { ...box, close: box.remove };
      };
      void changeTo(key, warmQueue(start));
    }
    const box = await (current as { queue: WarmQueue<Ready> }).queue.take(warm);
    return runInContainer(box, found, program, limits, connection);
  }
  return {
    isolation,
    run: (program) => semaphore.run(() => run(program), program.signal),
    runConnected: (first, second) => semaphore.run(() => runConnected(run, first, second), first.signal),
    counts() {
      const now = current?.queue.counts() ?? { started: 0, ready: 0, unused: 0, waiting: 0 };
      const sum = (name: keyof typeof totals) => totals[name] + now[name];
      return { started: sum("started"), ready: sum("ready"), unused: sum("unused"), waiting: now.waiting };
    },
    close: async () => current?.queue.close(),
  };
}

// Runs one untrusted program in a container of its own and reads its frames (worker/sandbox/container_runner.py).

/** The programs of an image that can run the runner and the programs. */
interface Interpreters {
  /** Absolute paths in the container. */
  python?: string;
  node?: string;
}

interface Launch {
  files: Readonly<Record<string, string>>;
  command: readonly string[];
  stdin: string;
  channel: boolean;
  cpuSeconds: number;
  fileBytes: number;
  /** Bytes of each process; null for V8, which reserves more than it uses. */
  addressSpace: number | null;
}

const source = (name: string) => readFileSync(new URL(`../../../worker/sandbox/${name}`, import.meta.url), "utf8");
const setUpSeconds = 60;
const endSeconds = 10;

function runnerOf({ python, node }: Interpreters): string[] {
  if (python) return [python, "-I", "-S", "-c", source("container_runner.py")];
  return [node ?? "node", "--input-type=module", "-e", source("container-runner.mjs")];
}

function launchOf(program: SandboxProgram, limits: SandboxLimits, found: Interpreters, channel: boolean): Launch {
  const [name, ...args] = program.command;
  const known = name === "python" ? found.python : name === "node" ? found.node : undefined;
  const command = known === undefined ? [name, ...args] : [known, ...(name === "python" ? ["-I", "-B"] : []), ...args];
  return {
    files: program.files ?? {},
    command,
    stdin: program.stdin ?? "",
    channel,
    cpuSeconds: Math.ceil(limits.cpuSeconds),
    fileBytes: limits.fileBytes,
    addressSpace: name === "python" ? limits.memoryBytes : null,
  };
}

/** The container ends with the program, and with it all of its processes. */
async function runInContainer(
  box: Started,
  found: Interpreters,
  program: SandboxProgram,
  limits: SandboxLimits,
  connection?: Connection,
): Promise<SandboxResult> {
  const { signal } = program;
  const args = ["exec", "-i", box.id, ...runnerOf(found)];
  const child = spawn(box.engine.name, args, { stdio: "pipe" });
  const closed = once(child, "close");
  closed.catch(() => {});
  let ended: SandboxResult["ended"] | undefined;
  const stop = (why?: SandboxResult["ended"]) => {
    ended ??= why;
    void box.remove();
  };
  const onAbort = () => stop();
  signal?.addEventListener("abort", onAbort, { once: true });
  const failed = { text: "" };
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    failed.text = (failed.text + text).slice(-2000);
  });
  // It may end before it has read its input.
  child.stdin.on("error", () => {});
  const frames = readFrames(child, limits.outputBytes, () => stop("output"), connection !== undefined);
  child.stdin.write(`${JSON.stringify(launchOf(program, limits, found, connection !== undefined))}\n`);
  if (connection === undefined) child.stdin.end();
  let timer: NodeJS.Timeout | undefined;
  try {
    signal?.throwIfAborted();
    const late = sleep(setUpSeconds * 1000, `it took more than ${setUpSeconds} seconds`, { ref: false });
    const gone = closed.then(
      () => failed.text.trim() || "it ended",
      (error: Error) => error.message,
    );
    const problem = await Promise.race([frames.ready, late, gone]);
    signal?.throwIfAborted();
    if (problem !== undefined)
      throw new RunError(`the program could not be started in a container of ${box.image}: ${problem}`);
    const start = performance.now();
    timer = setTimeout(() => stop("time"), limits.seconds * 1000);
    connection?.onChannel(frames.channel);
    connection?.over.then(stop);
    const end = await Promise.race([frames.end, closed.then(() => undefined)]);
    const seconds = (performance.now() - start) / 1000;
    signal?.throwIfAborted();
    // The program may end the runner, but not the container.
    if (end === undefined && ended === undefined && !(await box.isRunning())) {
      throw new RunError(`the container of ${box.image} ended while a program ran: ${failed.text.trim()}`);
    }
    const { code = null, ranOut = false, peak = 0 } = end ?? {};
    // 24 is SIGXCPU, the limit of processor time.
    const why = ended ?? (ranOut ? "memory" : code === -24 ? "time" : "exit");
    return {
      ended: why,
      exitCode: why === "exit" && code !== null && code >= 0 ? code : null,
      ...{ stdout: frames.stdout(), stderr: frames.stderr(), seconds, peakMemoryBytes: peak },
    };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", onAbort);
    await box.remove();
    await Promise.race([closed.catch(() => {}), sleep(endSeconds * 1000, undefined, { ref: false })]);
    child.kill("SIGKILL");
  }
}

interface End {
  code: number;
  ranOut: boolean;
  peak: number;
}

function readFrames(child: ChildProcessWithoutNullStreams, most: number, onTooMuch: () => void, connected: boolean) {
  let rest = Buffer.alloc(0);
  const outputs = { o: [] as Buffer[], e: [] as Buffer[] };
  const bytes = { o: 0, e: 0 };
  let [onReady, onEnd]: [() => void, (end: End) => void] = [() => {}, () => {}];
  const ready = new Promise<undefined>((resolve) => {
    onReady = () => resolve(undefined);
  });
  const end = new Promise<End>((resolve) => {
    onEnd = resolve;
  });
  const channel = new Duplex({
    read: () => child.stdout.resume(),
    write: (data, _encoding, done) => {
      child.stdin.write(data);
      done();
    },
    final: (done) => {
      child.stdin.end();
      done();
    },
  });
  channel.on("error", () => {});
  child.stdout.once("close", () => channel.push(null));
  function take(kind: string, data: Buffer): void {
    if (kind === "r") onReady();
    if (kind === "x") onEnd(endOf(data));
    // A reader that is slow makes the program wait.
    if (kind === "c" && connected && !channel.push(data)) child.stdout.pause();
    if (kind !== "o" && kind !== "e") return;
    const room = most - bytes[kind];
    bytes[kind] += data.length;
    if (room > 0) outputs[kind].push(data.subarray(0, room));
    if (bytes[kind] > most) onTooMuch();
  }
  child.stdout.on("data", (data: Buffer) => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= 5) {
      const size = rest.readUInt32BE(1);
      // The runner sends 64 KiB at most; a program that writes in its place does not make this process keep more.
      if (size > 2 ** 20) return onTooMuch();
      if (rest.length < 5 + size) break;
      take(String.fromCharCode(rest[0] ?? 0), Buffer.from(rest.subarray(5, 5 + size)));
      rest = rest.subarray(5 + size);
    }
  });
  const textOf = (kind: "o" | "e") => outputText(Buffer.concat(outputs[kind]));
  return { ready, end, channel, stdout: () => textOf("o"), stderr: () => textOf("e") };
}

/** What the program may have forged is a plain end. */
function endOf(data: Buffer): End {
  try {
    const { code, ranOut, peak } = JSON.parse(data.toString()) as Partial<End>;
    return { code: Number(code), ranOut: ranOut === true, peak: Number(peak) || 0 };
  } catch {
    return { code: -9, ranOut: false, peak: 0 };
  }
}
