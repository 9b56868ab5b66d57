/** One Harbor trial: its folder, its container, the process that runs it, and what its end means. */
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
import { fileURLToPath } from "node:url";
import { parse, stringify } from "smol-toml";
import { type GatewayCalls, type Outcome, RolloutEnded } from "../../agents/types.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { isKeyOwnerGone, ownerKey, temporaryFolder } from "../../base/files.ts";
import { prepareEnvironment } from "../../base/python.ts";
import { AnswerError, openResident, type Report, type Resident } from "../../base/resident.ts";
import { isObject } from "../../base/values.ts";
import type { Trial as EpisodeTrial } from "../../trajectories/types.ts";
import { changedFiles } from "../containers/container.ts";
import {
  buildImage,
  contentHash,
  type Engine,
  type EngineName,
  engines,
  findEngine,
  removeProjects,
  removeProjectsNow,
} from "../containers/engine.ts";

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

// The resident process in which Harbor runs trials: `worker/hone_harbor/bridge.py`, one for each process of Hone.

/** What Harbor reports of a trial. */
export interface TrialResult {
  verifier_result: { rewards: Record<string, number> | null } | null;
  exception_info: { exception_type: string; exception_message: string } | null;
  failure_cause: string | null;
  reward_valid: boolean;
}

export type TrialEvent = "environment-start" | "agent-start" | "agent-end" | "verification-start";

interface TrialRequest {
  /** Harbor's TrialConfig. */
  trial: Record<string, unknown>;
  /** End all processes of the agent before the verifier starts. After a time-out they always end. */
  guard: boolean;
  /** The agent's program is already in the container. */
  mounted_agent: boolean;
}

export interface TrialListener {
  event(event: TrialEvent): void;
  /** Output of the agent's set-up, the agent, or the verifier. */
  log(phase: string, text: string): void;
}

const script = fileURLToPath(new URL("../../../worker/hone_harbor/bridge.py", import.meta.url));

let current: Promise<Resident> | undefined;

/** Starts the bridge, or returns the running one. */
export function openBridge(): Promise<Resident> {
  const end = () => {
    current = undefined;
  };
  current ??= prepareEnvironment("harbor").then((python) =>
    openResident("Harbor's bridge", [python, script], process.env, end),
  );
  current.catch(end);
  return current;
}

/** Harbor's own errors: of its set-up, of an agent's or task's configuration, of the engine. */
export function toTrialFailure(error: unknown): unknown {
  if (!(error instanceof AnswerError)) return error;
  const { message, kind } = error;
  const isMistake =
    /^(ValidationError|ValueError|TypeError|KeyError|MissingModelCredentialError|SystemExit|FileNotFoundError)$/;
  const text = `Harbor could not run the trial: ${kind}: ${message}`;
  return isMistake.test(kind) ? new UserError(text) : new RunError(text);
}

/** @throws UserError or RunError if Harbor raised an error before or outside of the trial, or the bridge ended */
async function runInHarbor(request: TrialRequest, listener: TrialListener, signal: AbortSignal): Promise<TrialResult> {
  const bridge = await openBridge();
  const onReport = ({ event, log, phase }: Report) => {
    if (event !== undefined) listener.event(event as TrialEvent);
    if (log !== undefined) listener.log(String(phase), String(log));
  };
  return bridge.ask<TrialResult>(request, signal, onReport).catch((error: unknown) => {
    throw toTrialFailure(error);
  });
}

// What a trial's end means: a reward, or whose failure it was.

/**
 * An agent may swallow failed calls and exit with code 0; then the verifier's 0 is not due to the model.
 * @throws the failed call; RunError if no call was answered
 */
export function checkCalls({ answered, failure }: GatewayCalls, address: string, outOfBudget: boolean): void {
  if (failure && !outOfBudget && !(failure instanceof RolloutEnded)) throw failure;
  if (answered > 0) return;
  throw new RunError(`the agent ended without a reply from the model at ${address}`, {
    hint: "check that the agent uses this address, and that its container can reach it",
  });
}

/**
 * The reward of a finished trial; unknown if the verifier failed, which an agent can bring about.
 * @throws RunError if the container or Harbor failed; Error in the agent's stage if the agent did
 */
export function toOutcome(
  { result, verifierOutput, files }: Trial,
  seen: ReadonlySet<TrialEvent>,
  stage: (name: string) => void,
): Outcome {
  const { exception_info: exception, failure_cause: cause } = result;
  const what = exception && `${exception.exception_type}: ${exception.exception_message}`;
  switch (cause) {
    case null:
    case "agent_exhausted_budget":
    case "agent_refused_task":
      break;
    case "model_provider_failed":
      // The gateway knows why the call failed; the rollout finds it there.
      stage("agent");
      throw new Error(`the agent's model call failed: ${what}`);
    case "verifier_failed":
      break;
    case "unclassified":
      if (seen.has("agent-start") && !isOfVerifier(result, seen)) {
        stage("agent");
        throw new Error(`the agent failed: ${what}`);
      }
      throw diskOr(`the trial failed: ${what}`);
    default:
      throw diskOr(`the sandbox failed (${cause}): ${what}`);
  }
  const names = Object.keys(result.verifier_result?.rewards ?? {});
  const failed = cause === "verifier_failed" || names.length === 0;
  const timedOut = cause === "agent_exhausted_budget";
  const { metrics, ...graded } = failed ? { reward: null, metrics: {} } : rewardOf(result, names);
  const lines = [
    failed ? `the verifier failed: ${what ?? "it gave no reward"}` : timedOut ? `${what}.` : "",
    verifierOutput.trim(),
  ].filter(Boolean);
  return {
    ...graded,
    metrics: { ...metrics, agent_out_of_budget: Number(timedOut), verifier_failed: Number(failed) },
    ...(lines.length > 0 ? { explanation: lines.join("\n") } : {}),
    trial: { files, verifier: verifierOutput },
  };
}

/** An error after the agent's end that is not the agent's exit code. */
const isOfVerifier = ({ exception_info: exception }: TrialResult, seen: ReadonlySet<TrialEvent>) =>
  seen.has("agent-end") && exception?.exception_type !== "NonZeroAgentExitCodeError";

const diskOr = (message: string) =>
  new RunError(message, /no space left/i.test(message) ? { hint: "the disk is full; free some space" } : {});

function rewardOf({ verifier_result: verified }: TrialResult, names: string[]) {
  const rewards = verified?.rewards ?? {};
  const { reward = names.length === 1 ? rewards[names[0] ?? ""] : undefined, ...others } = rewards;
  if (reward !== undefined) return { reward, correct: reward >= 1, metrics: names.length === 1 ? {} : others };
  throw new UserError(`the verifier gave the rewards ${names.join(", ")}, but none is named "reward"`, {
    hint: 'write one number, or one of the keys of reward.json as "reward"; the others become metrics',
  });
}
