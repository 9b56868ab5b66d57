/** A sandbox whose programs each run in a container of their own: the third level of isolation for code graders. */
import { availableParallelism } from "node:os";
import { Semaphore } from "../concurrency/semaphore.ts";
import { UserError } from "../errors.ts";
import { runConnected } from "../rewards/sandbox/connected.ts";
import { type Connection, withDefaults } from "../rewards/sandbox/run-program.ts";
import type { Isolation, Sandbox, SandboxLimits, SandboxProgram } from "../rewards/sandbox/types.ts";
import { type Engine, type EngineName, findEngine } from "./engine.ts";
import { type Interpreters, runInContainer } from "./run-in-container.ts";
import { type Started, startContainer } from "./start.ts";
import { type WarmCounts, type WarmQueue, warmQueue } from "./warm-queue.ts";

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
