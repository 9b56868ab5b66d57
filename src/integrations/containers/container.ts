/** A container as a sandbox for workflows: commands and files of an untrusted program, started ahead, removed for certain. */
import { spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { posix } from "node:path";
import { RunError, UserError } from "../../base/errors.ts";
import { isOwnerGone, ownerMark } from "../../base/files.ts";
import type { Trial } from "../../trajectories/types.ts";
import { type Engine, type EngineName, findEngine } from "./engine.ts";

export interface ContainerOptions {
  /** An image with a shell (`sh`) and `cat`. It is pulled if it is missing. */
  image: string;
  /** Default: Docker if it runs, else podman. */
  engine?: EngineName;
  /** Default "none". */
  network?: "none" | "bridge" | "host";
  /** Limits; the engine needs cgroups to enforce them. Default: none. */
  memoryMb?: number;
  cpus?: number;
  env?: Readonly<Record<string, string>>;
  /** Containers that are started before they are needed, 64 at most. Default: `rllm.workflow.warm_queue_size`, or 0. */
  warm?: number;
}

export interface ExecOptions {
  /** Default 60. A command that takes longer ends with its whole container. */
  timeoutSeconds?: number;
  /** Written to its standard input. */
  input?: string | Uint8Array;
  cwd?: string;
  env?: Readonly<Record<string, string>>;
  /** Bytes of each output that are kept; default 1 MiB. A command that writes more ends with its whole container. */
  maxOutput?: number;
  signal?: AbortSignal;
}

/** How a command ended. */
export interface Executed {
  exitCode: number;
  stdout: string;
  stderr: string;
  /** Why the container was ended with the command. */
  ended?: "timeout" | "output";
}

/** Commands of one container, and its files. */
export interface Container {
  /** @param command text for `sh -c`, or a program and its arguments */
  exec(command: string | readonly string[], options?: ExecOptions): Promise<Executed>;
  /** @throws Error if the file does not exist */
  read(path: string): Promise<string>;
  /** Creates the folders of the path. */
  write(path: string, content: string | Uint8Array): Promise<void>;
  /** The commands so far and the files that they changed, as `trial` of the workflow's outcome: the viewer shows them. */
  record(): Promise<Trial>;
  close(): Promise<void>;
}

const mostCommands = 200;

/** What `open` reads of a workflow's context. */
export interface ContainerContext {
  tearDown?: (clean: () => Promise<void>) => void;
  /** `rllm.workflow.warm_queue_size`, if the container's own `warm` is not given. */
  warmQueueSize?: number;
}

/** Starts a container of the image. */
export interface OpenContainer {
  (context?: ContainerContext): Promise<Container>;
  /** Of the containers that were started. */
  counts(): WarmCounts;
  /** Gives back those that wait. They are also given back after two minutes without use, and when this process ends. */
  close(): Promise<void>;
}

/**
 * Containers for workflows: one for each rollout that asks, started in advance if `warm` says so.
 *
 * @returns a function that starts a container; `tearDown` of the workflow's context closes it with the rollout
 * @example
 * const open = container({ image: "python:3.13-slim" });
 * const workflow = async ({ row }, context) => {
 *   const box = await open(context);
 *   await box.write("/app/main.py", code);
 *   const { exitCode, stdout } = await box.exec("python /app/main.py", { timeoutSeconds: 10 });
 * };
 */
export function container(options: ContainerOptions): OpenContainer {
  const queue = warmQueue(() => start(options));
  const open = async (context: ContainerContext = {}): Promise<Container> => {
    const size = options.warm ?? context.warmQueueSize ?? 0;
    const opened = await queue.take(size < 0 ? availableParallelism() : size);
    context.tearDown?.(opened.close);
    return opened;
  };
  return Object.assign(open, { counts: queue.counts, close: queue.close });
}

async function start({
  image,
  network = "none",
  memoryMb,
  cpus,
  env = {},
  engine,
}: ContainerOptions): Promise<Container> {
  const limits = [
    ...(memoryMb === undefined ? [] : ["--memory", `${memoryMb}m`, "--memory-swap", `${memoryMb}m`]),
    ...(cpus === undefined ? [] : ["--cpus", String(cpus)]),
  ];
  const flags = ["--network", network, ...limits, ...flagsOf(env)];
  return opened(await startContainer(await findEngine(engine), image, flags));
}

const flagsOf = (env: Readonly<Record<string, string>>) =>
  Object.entries(env).flatMap(([name, value]) => ["-e", `${name}=${value}`]);

function opened({ engine, image, id, remove }: Started): Container {
  let over: string | undefined;
  const commands: NonNullable<Trial["commands"]>[number][] = [];

  async function exec(
    command: string | readonly string[],
    options: ExecOptions = {},
    recorded = true,
  ): Promise<Executed> {
    if (over !== undefined) throw new RunError(`the container of ${image} ${over}`);
    const { timeoutSeconds = 60, input, cwd, env = {}, maxOutput = 2 ** 20, signal } = options;
    const program = typeof command === "string" ? ["sh", "-c", command] : command;
    const flags = [...(input === undefined ? [] : ["-i"]), ...(cwd === undefined ? [] : ["-w", cwd]), ...flagsOf(env)];
    const limits = { timeoutMs: timeoutSeconds * 1000, maxOutput };
    const run = { ...limits, ...(input === undefined ? {} : { input }), ...(signal ? { signal } : {}) };
    const { cut, ...ran } = await engine.run(["exec", ...flags, id, ...program], run);
    if (recorded && commands.length < mostCommands) {
      const text = typeof command === "string" ? command : command.join(" ");
      const output = `${ran.stdout}${ran.stderr}`;
      commands.push({ command: text.slice(0, 2000), exitCode: ran.exitCode, output: output.slice(-2000) });
    }
    if (cut === undefined) return ran;
    // The program goes on without its client, so its container ends.
    over =
      cut === "timeout" ? `ended: a command took longer than ${timeoutSeconds} s` : "ended: a command wrote too much";
    await remove();
    return { ...ran, ended: cut };
  }

  return {
    exec: (command, options) => exec(command, options),
    async read(path) {
      const { exitCode, stdout, stderr } = await exec(["cat", "--", path], { maxOutput: 64 * 2 ** 20 }, false);
      if (exitCode === 0) return stdout;
      throw new Error(`${path} cannot be read: ${stderr.trim()}`);
    },
    async write(path, content) {
      const script = 'mkdir -p -- "$1" && cat > "$2"';
      const args = ["sh", "-c", script, "sh", posix.dirname(path), path];
      const { exitCode, stderr } = await exec(args, { input: content }, false);
      if (exitCode !== 0) throw new Error(`${path} cannot be written: ${stderr.trim()}`);
    },
    record: async () => ({ commands: [...commands], files: over === undefined ? await changedFiles(engine, id) : [] }),
    async close() {
      if (over === undefined) await remove();
      over ??= "was closed";
    },
  };
}

// Starts containers that wait for commands, and removes them: at the end of this process, or of a killed one at the next start.

export interface Started {
  engine: Engine;
  image: string;
  id: string;
  isRunning(): Promise<boolean>;
  /** Ends all of its processes. May be called again. */
  remove(): Promise<void>;
}

const ownerLabel = "hone.owner";
let cleaned: Promise<void> | undefined;
const running = new Map<string, Engine>();
let closes = false;

/** Removes the containers of killed processes. */
async function removeLeft(engine: Engine): Promise<void> {
  const format = "{{.ID}} {{.Names}}";
  const { stdout } = await engine.run(["ps", "-a", "--filter", `label=${ownerLabel}`, "--format", format]);
  const left = stdout.split("\n").map((line) => line.split(" ") as [string, string?]);
  for (const [id] of left.filter(([id]) => id !== "")) {
    const { stdout: owner } = await engine.run(["inspect", "--format", `{{index .Config.Labels "${ownerLabel}"}}`, id]);
    if (isOwnerGone(owner.trim())) await engine.run(["rm", "-f", "-v", id]);
  }
}

/**
 * @param flags of `docker run`, in addition to those that all have
 * @param command what its first process does; by default it waits
 */
export async function startContainer(
  engine: Engine,
  image: string,
  flags: readonly string[],
  command: readonly string[] = ["--entrypoint", "sh", image, "-c", "while :; do sleep 86400; done"],
): Promise<Started> {
  cleaned ??= removeLeft(engine);
  await cleaned;
  const { exitCode, stdout, stderr } = await engine.run([
    ...["run", "-d", "--label", `${ownerLabel}=${ownerMark}`],
    ...["--security-opt", "no-new-privileges"],
    // The first process ignores SIGTERM, for which podman waits 10 seconds.
    ...["--stop-signal", "SIGKILL"],
    ...flags,
    ...command,
  ]);
  const id = stdout.trim().split("\n").at(-1) ?? "";
  if (exitCode !== 0) {
    // podman leaves a container that it created but could not start.
    if (id !== "") await engine.run(["rm", "-f", "-v", id]);
    const text = `a container of ${image} cannot be started: ${stderr.trim().split("\n").at(-1)}`;
    throw /no space left/i.test(stderr) ? new RunError(text, { hint: "the disk is full" }) : new UserError(text);
  }
  if (!closes) process.once("exit", closeAll);
  closes = true;
  running.set(id, engine);
  let removed: Promise<void> | undefined;
  return {
    ...{ engine, image, id },
    isRunning: async () =>
      (await engine.run(["inspect", "--format", "{{.State.Running}}", id])).stdout.trim() === "true",
    remove() {
      removed ??= (async () => {
        running.delete(id);
        await engine.run(["rm", "-f", "-v", id]);
      })();
      return removed;
    },
  };
}

/** Containers that were started before they were needed, and those that no rollout closed. */
function closeAll(): void {
  for (const [id, { name }] of running) spawnSync(name, ["rm", "-f", "-v", id]);
}

// Starts containers before they are needed.

/** How many containers were started, how many of them in advance, how many were given back unused, and how many wait. */
export interface WarmCounts {
  started: number;
  ready: number;
  unused: number;
  waiting: number;
}

export interface WarmQueue<Box> {
  /** @param size how many to keep ready after this one */
  take(size: number): Promise<Box>;
  /** Gives back those that wait. */
  close(): Promise<void>;
  counts(): WarmCounts;
}

/** Containers that nobody takes for this long are given back: between steps, or when training has ended. */
const idleMs = 120_000;
/** No more than this many wait, whatever the settings say. */
export const mostWaiting = 64;

export function warmQueue<Box extends { close(): Promise<void> }>(start: () => Promise<Box>): WarmQueue<Box> {
  const waiting: Promise<Box>[] = [];
  const counts = { started: 0, ready: 0, unused: 0 };
  let idle: NodeJS.Timeout | undefined;
  const begin = () => {
    counts.started++;
    const started = start();
    // Reported to whoever takes it.
    started.catch(() => {});
    return started;
  };
  async function close(): Promise<void> {
    clearTimeout(idle);
    const left = waiting.splice(0);
    counts.unused += left.length;
    await Promise.all(left.map((each) => each.then((box) => box.close()).catch(() => {})));
  }
  return {
    async take(size) {
      const ready = waiting.shift();
      if (ready) counts.ready++;
      // Before the others, which the engine would otherwise start first.
      const taken = ready ?? begin();
      while (waiting.length < Math.min(size, mostWaiting)) waiting.push(begin());
      clearTimeout(idle);
      if (waiting.length > 0) idle = setTimeout(close, idleMs).unref();
      return taken;
    },
    close,
    counts: () => ({ ...counts, waiting: waiting.length }),
  };
}

// The files of a container that differ from its image.

const most = 500;
const kinds = { A: "added", C: "changed", D: "deleted" } as const;

/** Folders that change when a container starts, such as for `/etc/hosts`. */
const ofEngine = new Set(["/etc", "/run"]);

/**
 * Folders of which a file is listed are left out, as are caches.
 * @param without folders that are not listed
 */
export async function changedFiles(
  engine: Engine,
  id: string,
  without: readonly string[] = [],
): Promise<NonNullable<Trial["files"]>> {
  const { exitCode, stdout } = await engine.run(["diff", id], { timeoutMs: 30_000 });
  return exitCode === 0 ? readDiff(stdout, without) : [];
}

export function readDiff(text: string, without: readonly string[]): NonNullable<Trial["files"]> {
  const entries = text.split("\n").flatMap((line) => {
    const [, kind, path] = /^([ACD]) (\/.*)$/.exec(line) ?? [];
    return kind && path ? [{ path, change: kinds[kind as keyof typeof kinds] }] : [];
  });
  const inside = (path: string) =>
    [...without, "/proc", "/sys", "/dev"].some((folder) => `${path}/`.startsWith(`${folder}/`));
  const listed = entries
    .filter(({ path }) => !inside(path) && !/\/(__pycache__|\.cache|node_modules)(\/|$)|\.pyc$/.test(path))
    .sort((left, right) => (left.path < right.path ? -1 : 1));
  const above = (path: string) => path.split("/").map((_, at, parts) => parts.slice(0, at).join("/"));
  const folders = new Set(entries.flatMap(({ path }) => above(path)));
  return listed.filter(({ path }) => !folders.has(path) && !ofEngine.has(path)).slice(0, most);
}
