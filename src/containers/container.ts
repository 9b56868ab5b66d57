/** A container as a sandbox for workflows: commands and files of an untrusted program. */
import { availableParallelism } from "node:os";
import { posix } from "node:path";
import { RunError } from "../errors.ts";
import type { Trial } from "../trajectories/types.ts";
import { changedFiles } from "./changed-files.ts";
import { type EngineName, findEngine } from "./engine.ts";
import { type Started, startContainer } from "./start.ts";
import { type WarmCounts, warmQueue } from "./warm-queue.ts";

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
