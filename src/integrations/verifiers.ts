/**
 * `hone-rl/verifiers`: an environment of verifiers. It runs as it is in verifiers' own process and calls the gateway.
 * @module
 */
import { delimiter, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import type { Outcome, Workflow } from "../agents/types.ts";
import { RunError, UserError } from "../base/errors.ts";
import { prepareEnvironment } from "../base/python.ts";
import { AnswerError, openResident, type Resident } from "../base/resident.ts";
import { type Dataset, fromRows } from "../data/dataset.ts";

export interface VerifiersOptions {
  /** A taskset of an installed package, such as `"gsm8k-v1"`, or its configuration: `{ id: "gsm8k-v1", split: "train" }`. */
  taskset: string | ({ id: string } & Record<string, unknown>);
  /**
   * The program that plays, by name or with its configuration. Default `"null"`: a conversation with the taskset's tools.
   * A program that executes commands (`"bash"`, `"codex"`, ...) needs a `runtime`.
   */
  harness?: string | ({ id: string } & Record<string, unknown>);
  /** Where that program runs: `"docker"`, ..., or `"subprocess"`: on this machine, without isolation. Default for `"null"`. */
  runtime?: string | ({ type: string } & Record<string, unknown>);
  /** More of verifiers' environment configuration: `{ agent: { max_turns: 8 }, timeout: { episode: 600 } }`. */
  env?: Readonly<Record<string, unknown>>;
  /** A Python with verifiers 0.4 and the taskset's package. Default: `HONE_VERIFIERS_PYTHON`, or an environment that Hone prepares. */
  python?: string;
  /** Folders with tasksets of your own, in addition to PYTHONPATH. */
  pythonPath?: readonly string[];
}

/** A task of a taskset, for `verifiersEnvironment`. */
export interface VerifiersTask {
  /** Its position in the taskset. */
  index: number;
  name: string | null;
}

const script = fileURLToPath(new URL("../../worker/hone_verifiers/bridge.py", import.meta.url));
const running = new Map<string, Promise<Resident>>();

/** One process for each configuration. */
async function processOf(options: VerifiersOptions): Promise<Resident> {
  const { taskset, harness = "null", env = {}, pythonPath = [] } = options;
  const program = typeof harness === "string" ? { id: harness } : harness;
  const runtime = options.runtime ?? (program.id === "null" ? "subprocess" : undefined);
  if (runtime === undefined) {
    throw new UserError(`verifiers: the harness ${program.id} executes commands of the model and has no runtime`, {
      hint: 'choose one: runtime: "docker", or "subprocess", which is this machine without isolation',
    });
  }
  const configuration = JSON.stringify({
    ...env,
    taskset: typeof taskset === "string" ? { id: taskset } : taskset,
    seats: { harness: program, runtime: typeof runtime === "string" ? { type: runtime } : runtime },
  });
  const python = options.python ?? (await prepareEnvironment("verifiers"));
  const paths = [...pythonPath.map((path) => resolve(path)), process.env.PYTHONPATH ?? ""].filter(Boolean);
  const key = [python, configuration, ...paths].join("\0");
  const known =
    running.get(key) ??
    openResident(
      "verifiers",
      [python, script, configuration],
      { ...process.env, PYTHONPATH: paths.join(delimiter) },
      () => running.delete(key),
    );
  running.set(key, known);
  known.catch(() => running.delete(key));
  return known;
}

/**
 * The tasks of a taskset: all, or the first `limit`, which an endless taskset requires.
 * @throws UserError if verifiers cannot load the taskset
 */
export async function verifiersTasks(
  { limit, ...options }: VerifiersOptions & { limit?: number },
  signal: AbortSignal = new AbortController().signal,
): Promise<Dataset<VerifiersTask>> {
  const process = await processOf(options);
  const found = await process
    .ask<(VerifiersTask & { key: string })[]>({ tasks: limit ?? null }, signal)
    .catch((error: unknown) => {
      throw mistake(error);
    });
  const id = typeof options.taskset === "string" ? options.taskset : options.taskset.id;
  // The key of a task is its content, so two tasks may have the same.
  return fromRows(
    id,
    found.map(({ index, name }) => ({ index, name })),
    { id: ({ index }) => `${id}/${found[index]?.key.slice(0, 16)}-${index}` },
  );
}

interface Played {
  ok: boolean;
  errors: { type: string; message: string }[];
  traces: {
    name: string;
    stop: string | null;
    timeout: boolean;
    rewards: Record<string, number | null>;
    metrics: Record<string, number | null>;
  }[];
}

/**
 * Each rollout is an episode of the environment, whose model is the rollout's own address. The reward is the sum of the
 * trace's rewards; one of them that is unknown makes the sum unknown. Metrics stay metrics, and several rewards count as
 * metrics, too.
 *
 * @throws UserError for an environment in which the policy plays several parts
 * @example
 * const letters = { taskset: "letters", pythonPath: ["./tasksets"] };
 * export default defineExperiment({ train: await verifiersTasks(letters), workflow: verifiersEnvironment(letters) });
 */
export function verifiersEnvironment(options: VerifiersOptions): Workflow<VerifiersTask> {
  return async ({ row }, { gateway, signal, stage }) => {
    stage("set-up");
    const process = await processOf(options);
    stage("agent");
    const request = { task: row.index, base_url: gateway.baseURL, api_key: gateway.apiKey };
    const played = await process.ask<Played>(request, signal).catch((error: unknown) => {
      throw mistake(error);
    });
    gateway.end();
    if (!played.ok) throw failure(played, stage);
    return toOutcome(played);
  };
}

/** What verifiers raises outside of an episode: a wrong configuration, a task that does not exist. */
const mistake = (error: unknown) =>
  error instanceof AnswerError ? new UserError(`verifiers: ${error.kind}: ${error.message}`, { cause: error }) : error;

/** verifiers names the part that failed in the type of its error. */
function failure({ errors, traces }: Played, stage: (name: string) => void): Error {
  const { type, message } = errors.at(-1) ?? { type: "", message: "" };
  const stopped = traces.find(({ timeout }) => timeout);
  const text = `the environment failed: ${type ? `${type}: ${message}` : (stopped?.stop ?? "no reason given")}`;
  if (/^(SandboxError|InterceptionError|TunnelError|ToolsetError)$/.test(type)) return new RunError(text);
  // The gateway knows why a model call failed; the rollout finds it there.
  stage(type === "TaskError" ? "reward" : type === "EnvError" ? "environment" : "agent");
  return new Error(text);
}

function toOutcome({ traces }: Played): Outcome {
  const [trace, ...others] = traces;
  if (trace === undefined) throw new Error("the environment ended without a call of the policy");
  if (others.length > 0) {
    const names = [...new Set(traces.map(({ name }) => name))].join(", ");
    throw new UserError(
      `the policy played ${traces.length} parts of an episode (${names}), which is not supported so far`,
      {
        hint: "give all but one of them a client and a model of their own in `env`",
      },
    );
  }
  const rewards = Object.entries(trace.rewards);
  const known = rewards.flatMap(([, value]) => (value === null ? [] : [value]));
  const reward =
    rewards.length === 0 || known.length < rewards.length ? null : known.reduce((sum, value) => sum + value, 0);
  const named = [...(rewards.length > 1 ? rewards : []), ...Object.entries(trace.metrics)];
  const metrics = Object.fromEntries(named.flatMap(([name, value]) => (value === null ? [] : [[name, value]])));
  return { reward, metrics, ...(trace.stop ? { explanation: `ended: ${trace.stop}` } : {}) };
}
