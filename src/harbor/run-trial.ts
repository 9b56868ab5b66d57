/** Runs one Harbor trial: its folder, its container, and everything that must be removed when it ends. */
import { randomBytes } from "node:crypto";
import {
  closeSync,
  constants,
  cpSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { parse, stringify } from "smol-toml";
import { buildImage, contentHash } from "../containers/build-image.ts";
import { changedFiles } from "../containers/changed-files.ts";
import {
  type Engine,
  type EngineName,
  engines,
  findEngine,
  removeProjects,
  removeProjectsNow,
} from "../containers/engine.ts";
import { isKeyOwnerGone, ownerKey, temporaryFolder } from "../files/temporary-names.ts";
import { isObject } from "../is-object.ts";
import type { Trial as EpisodeTrial } from "../trajectories/types.ts";
import { runInHarbor, type TrialListener, type TrialResult } from "./bridge.ts";

export interface TrialOptions {
  /** The task's folder. */
  task: string;
  /** Harbor's AgentConfig. */
  agent: Record<string, unknown>;
  /** `docker`, `podman`, or another environment of Harbor. */
  environment: string;
  network: "bridge" | "host";
  /** Host folders that the container sees, read-only, by their path in the container. */
  mounts: Readonly<Record<string, string>>;
  guard: boolean;
  mountedAgent: boolean;
  /** More fields of Harbor's TrialConfig, such as `agent_timeout_multiplier`. */
  more: Record<string, unknown>;
}

export interface Trial {
  result: TrialResult;
  /** What the verifier wrote, its end. */
  verifierOutput: string;
  files: NonNullable<EpisodeTrial["files"]>;
}

/** A trial's name is the beginning of its compose project, which labels all that belongs to it, so it names its owner. */
const prefix = "hone-";
const newName = () => `${prefix}${ownerKey}-${randomBytes(4).toString("hex")}`;
const isLeft = (project: string) => project.startsWith(prefix) && isKeyOwnerGone(project.slice(prefix.length));

const isOf = (name: string) => (project: string) => project.startsWith(`${name}__`);

/** Trials of which something is left if this process ends now, e.g. at the second Ctrl-C. */
const unfinished = new Map<string, Engine | undefined>();

let folder: string | undefined;

/** The folder of this process's trials. */
function ownFolder(): string {
  if (folder !== undefined) return folder;
  const own = temporaryFolder("hone-harbor-");
  process.once("exit", () => {
    try {
      for (const [name, engine] of unfinished) if (engine) removeProjectsNow(engine.name, isOf(name));
    } catch (error) {
      process.stderr.write(`${(error as Error).message}; the next run removes what is left\n`);
    }
    rmSync(own, { recursive: true, force: true });
  });
  folder = own;
  return own;
}

const cleaned = new Map<EngineName, Promise<void>>();

/** Before the first trial: removes what killed processes left. */
function removeLeft(engine: Engine): Promise<void> {
  const known = cleaned.get(engine.name) ?? removeProjects(engine, isLeft);
  cleaned.set(engine.name, known);
  known.catch(() => cleaned.delete(engine.name));
  return known;
}

/** @returns the engine of the environment; undefined if it is not one of this machine */
export async function engineOf(environment: string): Promise<Engine | undefined> {
  return engines.includes(environment as EngineName) ? findEngine(environment as EngineName) : undefined;
}

const buildSeconds = 600;

/** A task whose image was built before, so that its trials do not build it. Tasks with a compose file stay as they are. */
async function withImage(task: string, engine: Engine | undefined, own: string): Promise<string> {
  const definition = join(task, "environment");
  const config = parse(readFileSync(join(task, "task.toml"), "utf8"));
  const environment = isObject(config.environment) ? config.environment : {};
  const needsNone = environment.docker_image !== undefined || existsSync(join(definition, "docker-compose.yaml"));
  if (engine === undefined || needsNone) return task;
  const seconds = typeof environment.build_timeout_sec === "number" ? environment.build_timeout_sec : buildSeconds;
  const image = await buildImage(engine, definition, seconds);
  const copy = join(own, "tasks", contentHash(task).slice(0, 20));
  if (existsSync(join(copy, "task.toml"))) return copy;
  mkdirSync(join(own, "tasks"), { recursive: true });
  cpSync(task, copy, { recursive: true, filter: (path) => path !== join(task, "task.toml") });
  // Last: a folder with it is complete.
  const toml = stringify({ ...config, environment: { ...environment, docker_image: image } });
  writeFileSync(join(copy, "task.toml"), toml);
  return copy;
}

/** A container with a network of its own finds this machine by this name: podman writes it, Docker when asked. */
export const hostName = "host.containers.internal";

/** Written over the task's own compose file. The first process of a container ignores SIGTERM, and nobody waits for it. */
function overlay(network: TrialOptions["network"], engine: Engine): string {
  const hosts = [hostName, "host.docker.internal"].map((name) => `"${name}:host-gateway"`);
  const own = engine.name === "docker" ? `extra_hosts: [${hosts.join(", ")}], ` : "";
  return `services: {main: {${network === "host" ? "network_mode: host, " : own}stop_signal: SIGKILL}}\n`;
}

/** The most bytes of the verifier's output that are kept. */
const maxOutput = 8000;

/** The agent may have made the file a link to one of this machine, or a pipe. */
function readEnd(path: string): string {
  try {
    const file = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const stat = fstatSync(file);
      if (!stat.isFile()) return "";
      const { size } = stat;
      const bytes = Buffer.alloc(Math.min(size, maxOutput));
      return bytes.toString("utf8", 0, readSync(file, bytes, 0, bytes.length, Math.max(0, size - maxOutput)));
    } finally {
      closeSync(file);
    }
  } catch {
    return "";
  }
}

/** What the agent changed, without what Harbor puts into a container. */
async function filesOf(engine: Engine, name: string): Promise<Trial["files"]> {
  const labels = ["--filter", `label=com.docker.compose.project=${`${name}__env`.toLowerCase()}`];
  const main = ["--filter", "label=com.docker.compose.service=main"];
  const { stdout } = await engine.run(["ps", "-aq", ...labels, ...main]);
  const id = stdout.trim().split("\n")[0];
  return id ? changedFiles(engine, id, ["/logs", "/tests", "/solution", "/opt/agent", "/installed-agent"]) : [];
}

/**
 * Nothing is left when it has settled: the container, its network and the trial's folder are removed.
 *
 * @param onEnd registers what must run if the caller does not wait
 */
export async function runTrial(
  options: TrialOptions,
  listener: TrialListener,
  signal: AbortSignal,
  onEnd: (clean: () => Promise<void>) => void,
): Promise<Trial> {
  const engine = await engineOf(options.environment);
  if (engine) await removeLeft(engine);
  const own = ownFolder();
  const task = await withImage(options.task, engine, own);
  signal.throwIfAborted();
  const name = newName();
  const trials = join(own, "trials");
  mkdirSync(join(trials, name), { recursive: true });
  const compose = join(own, `${options.network}-${options.environment}.yaml`);
  if (engine) writeFileSync(compose, overlay(options.network, engine));
  const mounts = Object.entries(options.mounts).map(([target, source]) => ({
    ...{ type: "bind", source, target, read_only: true },
  }));
  const trial = {
    task: { path: task },
    trial_name: name,
    trials_dir: trials,
    agent: options.agent,
    environment: {
      type: options.environment,
      // Deleting would remove images that other trials use.
      delete: engine === undefined,
      ...(mounts.length > 0 ? { mounts } : {}),
      ...(engine ? { extra_docker_compose: [compose] } : {}),
    },
    ...options.more,
  };
  const request = { trial, guard: options.guard, mounted_agent: options.mountedAgent };
  let files: Promise<Trial["files"]> | undefined;
  const watching: TrialListener = {
    log: listener.log,
    event(event) {
      // Harbor removes the container when the trial ends.
      if (event === "agent-end" && engine) files = filesOf(engine, name).catch(() => []);
      listener.event(event);
    },
  };
  unfinished.set(name, engine);
  const ended = runInHarbor(request, watching, signal);
  let cleaned: Promise<void> | undefined;
  const clean = () => {
    cleaned ??= (async () => {
      await ended.catch(() => {});
      if (engine) await removeProjects(engine, isOf(name));
      rmSync(join(trials, name), { recursive: true, force: true });
      unfinished.delete(name);
    })();
    return cleaned;
  };
  onEnd(clean);
  try {
    const result = await ended;
    const verifierOutput = readEnd(join(trials, name, "verifier", "test-stdout.txt"));
    return { result, verifierOutput, files: (await files) ?? [] };
  } finally {
    await clean();
  }
}
