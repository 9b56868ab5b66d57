/** A container as a sandbox for workflows: commands and files of an untrusted program. */
import { spawnSync } from "node:child_process";
import { posix } from "node:path";
import { RunError, UserError } from "../errors.ts";
import { isOwnerGone, ownerMark } from "../files/temporary-names.ts";
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
  /** Containers that are started before they are needed. Default 0. */
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
  close(): Promise<void>;
}

const ownerLabel = "hone.owner";

/**
 * @returns a function that starts a container; `tearDown` of the workflow's context closes it with the rollout
 * @example
 * const open = container({ image: "python:3.13-slim", warm: 4 });
 * const workflow = async ({ row }, { model, tearDown }) => {
 *   const box = await open({ tearDown });
 *   await box.write("/app/main.py", code);
 *   const { exitCode, stdout } = await box.exec("python /app/main.py", { timeoutSeconds: 10 });
 * };
 */
export function container(options: ContainerOptions) {
  const { warm = 0 } = options;
  const waiting: Promise<Container>[] = [];
  const startNext = () => {
    const started = start(options);
    // Reported to whoever takes it.
    started.catch(() => {});
    return started;
  };
  return async (context: { tearDown?: (clean: () => Promise<void>) => void } = {}): Promise<Container> => {
    const taken = waiting.shift() ?? startNext();
    while (waiting.length < warm) waiting.push(startNext());
    const opened = await taken;
    context.tearDown?.(opened.close);
    return opened;
  };
}

let cleaned: Promise<void> | undefined;
const running = new Map<string, Engine>();
let closes = false;

/** Removes the containers of killed processes. */
async function removeLeft(engine: Engine): Promise<void> {
  const { stdout } = await engine.run([
    "ps",
    "-a",
    "--filter",
    `label=${ownerLabel}`,
    "--format",
    "{{.ID}} {{.Names}}",
  ]);
  const left = stdout.split("\n").map((line) => line.split(" ") as [string, string?]);
  for (const [id] of left.filter(([id]) => id !== "")) {
    const { stdout: owner } = await engine.run(["inspect", "--format", `{{index .Config.Labels "${ownerLabel}"}}`, id]);
    if (isOwnerGone(owner.trim())) await engine.run(["rm", "-f", "-v", id]);
  }
}

async function start({
  image,
  network = "none",
  memoryMb,
  cpus,
  env = {},
  ...options
}: ContainerOptions): Promise<Container> {
  const engine = await findEngine(options.engine);
  cleaned ??= removeLeft(engine);
  await cleaned;
  const limits = [
    ...(memoryMb === undefined ? [] : ["--memory", `${memoryMb}m`, "--memory-swap", `${memoryMb}m`]),
    ...(cpus === undefined ? [] : ["--cpus", String(cpus)]),
  ];
  const { exitCode, stdout, stderr } = await engine.run([
    ...[
      "run",
      "-d",
      "--label",
      `${ownerLabel}=${ownerMark}`,
      "--network",
      network,
      "--security-opt",
      "no-new-privileges",
      // The first process ignores SIGTERM, for which podman waits 10 seconds.
      "--stop-signal",
      "SIGKILL",
    ],
    ...limits,
    ...flagsOf(env),
    ...["--entrypoint", "sh", image, "-c", "while :; do sleep 86400; done"],
  ]);
  if (exitCode !== 0) {
    const text = `a container of ${image} cannot be started: ${stderr.trim().split("\n").at(-1)}`;
    throw /no space left/i.test(stderr) ? new RunError(text, { hint: "the disk is full" }) : new UserError(text);
  }
  return opened(engine, image, stdout.trim().split("\n").at(-1) ?? "");
}

const flagsOf = (env: Readonly<Record<string, string>>) =>
  Object.entries(env).flatMap(([name, value]) => ["-e", `${name}=${value}`]);

function opened(engine: Engine, image: string, id: string): Container {
  let over: string | undefined;
  if (!closes) process.once("exit", closeAll);
  closes = true;
  running.set(id, engine);
  const remove = async (): Promise<void> => {
    running.delete(id);
    await engine.run(["rm", "-f", "-v", id]);
  };

  async function exec(command: string | readonly string[], options: ExecOptions = {}): Promise<Executed> {
    if (over !== undefined) throw new RunError(`the container of ${image} ${over}`);
    const { timeoutSeconds = 60, input, cwd, env = {}, maxOutput = 2 ** 20, signal } = options;
    const program = typeof command === "string" ? ["sh", "-c", command] : command;
    const flags = [...(input === undefined ? [] : ["-i"]), ...(cwd === undefined ? [] : ["-w", cwd]), ...flagsOf(env)];
    const limits = { timeoutMs: timeoutSeconds * 1000, maxOutput };
    const run = { ...limits, ...(input === undefined ? {} : { input }), ...(signal ? { signal } : {}) };
    const { cut, ...ran } = await engine.run(["exec", ...flags, id, ...program], run);
    if (cut === undefined) return ran;
    // The program goes on without its client, so its container ends.
    over =
      cut === "timeout" ? `ended: a command took longer than ${timeoutSeconds} s` : "ended: a command wrote too much";
    await remove();
    return { ...ran, ended: cut };
  }

  return {
    exec,
    async read(path) {
      const { exitCode, stdout, stderr } = await exec(["cat", "--", path], { maxOutput: 64 * 2 ** 20 });
      if (exitCode === 0) return stdout;
      throw new Error(`${path} cannot be read: ${stderr.trim()}`);
    },
    async write(path, content) {
      const script = 'mkdir -p -- "$1" && cat > "$2"';
      const { exitCode, stderr } = await exec(["sh", "-c", script, "sh", posix.dirname(path), path], {
        input: content,
      });
      if (exitCode !== 0) throw new Error(`${path} cannot be written: ${stderr.trim()}`);
    },
    async close() {
      if (over === undefined) await remove();
      over ??= "was closed";
    },
  };
}

/** Containers that were started before they were needed, and those that no rollout closed. */
function closeAll(): void {
  for (const [id, { name }] of running) spawnSync(name, ["rm", "-f", "-v", id]);
}
