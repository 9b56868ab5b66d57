/**
 * The engine on verl: starts the Python driver on Ray, and learns and samples through it.
 *
 * verl's `LLMServerManager` starts its rollout servers, and its `CheckpointEngineManager` updates their weights. Hone samples over HTTP with
 * its own sampler for inference servers, not with verl's client over Ray: that sampler already balances load, keeps sessions on a
 * server, streams, retries and checks log-probabilities, and through Ray each token would pass the driver, which runs one operation at
 * a time. Three consequences:
 * - A request over HTTP cannot name an adapter, so LoRA is merged into the weights (`actor_rollout_ref.model.lora.merge`).
 * - vLLM does not label these weights with a version, so the driver stops all running requests before each update
 *   (`abort_replicas`), and the sampler continues them from their tokens.
 * - Log-probabilities are the model's own (`logprobs_mode=raw_logprobs`), as on the other backends. With verl's default, those after
 *   temperature and filters, ratios would start from another distribution than the one that Hone trains.
 *
 * Tests use a small server that implements verl's interface for replicas (`worker/hone_on_cpu/small_rollout.py`). verl's own vLLM
 * server ran by hand on a CPU (`vllm_on_cpu.py`): log-probabilities differed from the workers' by at most 7.4e-6, before and after updates.
 */
import { dirname, join, resolve } from "node:path";
import type { Loss } from "../../algorithms/types.ts";
import { type Death, describeDeath } from "../../base/processes.ts";
import { prepareEnvironment, verlEnvironment } from "../../base/python.ts";
import { memoryStore } from "../../images/images.ts";
import { countsOf } from "../../trajectories/batch.ts";
import type { LearningEngine } from "../engine.ts";
import { EngineDied, requireCreatable } from "../engine-parts.ts";
import { modelFolder } from "../local/engine.ts";
import { serverPackages } from "../local/models.ts";
import { threadEnvironment, usableCores } from "../local/options.ts";
import type { WeightSource } from "../servers/policies.ts";
import {
  connect,
  imagesOf,
  modelInfo,
  startWorker,
  type WorkerModel,
  type WorkerProcess,
  workerStats,
} from "../worker/connection.ts";
import { createWorkerLearner, type NativeLoss, sendOnce } from "../worker/learner.ts";
import { workerImages } from "../worker/media.ts";
import { capabilities, compareValues, type VerlEngineOptions, type WorkerValues, withModel } from "./options.ts";

// Starts the driver of the verl backend, and explains why it ended.

/** Ray ends its processes one after the other. */
const graceSeconds = 30;

/**
 * @param packages a folder with further Python packages
 * @throws RunError when Python cannot be started at all
 */
const startDriver = (
  python: string,
  { ranks, usesGpu }: { ranks: number; usesGpu: boolean },
  logFile: string | undefined,
  packages?: string | undefined,
): Promise<WorkerProcess> =>
  startWorker({
    python,
    module: "hone_verl",
    packages,
    env: {
      ...process.env,
      ...(usesGpu ? {} : { VERL_PLATFORM: "cpu" }),
      // The driver passes these variables to the workers, which share the cores of a machine.
      ...threadEnvironment(0, Math.max(1, Math.floor(usableCores() / ranks)), process.env),
    } as Record<string, string>,
    logFile,
    graceSeconds,
    died: driverDied,
  });

const hints = {
  SIGKILL:
    "Lower trainer.n_gpus_per_node, actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu or data.max_response_length, or use machines with more memory.",
};

/** If the raylet ends, Ray also ends the driver. Ray prints one line about this, and then the indented log of the raylet. */
export function driverDied(death: Death): EngineDied {
  const lastLines = death.lastLines.filter((line) => !/^\s+\[/.test(line));
  const { message, hint } = describeDeath({ ...death, lastLines }, { name: "the verl driver", hints });
  return new EngineDied(message, { hint });
}

// Losses that verl's workers compute themselves: verl's registered losses that have the gradient of Hone's.

/** verl adds a plain sum over tokens; `settings` are keys of `actor_rollout_ref.actor`. */
export function nativeLoss(loss: Loss, offsets: Int32Array): NativeLoss | undefined {
  const hosted = loss.hosted?.();
  if (hosted?.verl === undefined) return undefined;
  const { averages, ...found } = hosted.verl;
  const { weights, logprobs, advantages = weights } = hosted.inputs;
  if (advantages === undefined) return undefined;
  const inputs = {
    advantages: averages ? timesCounts(advantages, offsets) : advantages,
    ...(logprobs ? { old_logprobs: logprobs } : {}),
  };
  return { ...found, inputs };
}

function timesCounts(values: Float32Array, offsets: Int32Array): Float32Array {
  const counts = Array.from(countsOf(offsets)).flatMap((count) => Array<number>(count).fill(count));
  return values.map((value, token) => value * counts[token]!);
}

// The verl engine: learners that use verl's worker groups on Ray through a Python driver. Servers sample.

export interface VerlEngine extends LearningEngine {
  /** Addresses and weights of verl's rollout servers, if they sample. */
  rollouts?: { urls: string[]; source: WeightSource };
}

/**
 * @throws UserError when the model or the configuration cannot be used, or a Ray cluster does not answer
 * @throws RunError when the set-up or the driver fails
 */
export async function openVerlEngine(options: VerlEngineOptions): Promise<VerlEngine> {
  const { logFile, onStatus = () => {}, warn = () => {}, media: store = memoryStore() } = options.hooks;
  onStatus("preparing the model");
  const model = await modelFolder(options.name);
  onStatus("preparing the environment of verl");
  const python = await prepareEnvironment(verlEnvironment());
  onStatus("starting the verl driver");
  const packages = options.rollouts && (await serverPackages(model));
  const driver = await startDriver(python, options, logFile, packages);
  const connection = connect(driver);
  const request = async (op: string, fields: Record<string, unknown> = {}) => {
    const answer = connection.request(op, fields, {}, ({ header }) => {
      if (header.event === "status") onStatus(String(header.text));
    }).answer;
    return (await answer).header;
  };
  try {
    const header = await request("load", {
      model,
      name: options.name,
      config: withModel(options.config, model),
      ray: options.ray,
      gpu: options.usesGpu,
      rollouts: options.rollouts !== undefined,
      logs: resolve(logFile === undefined ? "ray-logs" : join(dirname(logFile), "ray")),
    });
    for (const text of adaptations(header.adapted as Adapted[])) warn(text);
    const rollouts = options.rollouts && (await openRollouts(request));
    const found = header.model as WorkerModel;
    // The policy, its reference and the critic compute on the same sequences.
    const computing = { native: nativeLoss, send: sendOnce(connection) };
    const { placeholder, reason } = imagesOf(found);
    const sends = options.rollouts !== "sglang";
    const imagesReason = placeholder && !sends ? "Hone does not send images to verl's SGLang servers so far" : reason;
    return {
      capabilities,
      model: modelInfo(options.name, found),
      versions: header.versions as Record<string, string>,
      ...(rollouts ? { rollouts } : {}),
      ...(placeholder && sends ? { images: workerImages(connection, store, placeholder) } : {}),
      ...(imagesReason === undefined ? {} : { imagesReason }),
      async createPolicy(spec) {
        return { learner: (await createWorkerLearner(connection, store, spec, computing)).learner };
      },
      async createLearner(spec) {
        requireCreatable(capabilities, spec);
        return (await createWorkerLearner(connection, store, spec, computing)).learner;
      },
      async examine() {
        const held = await request("readback", { paths: [...options.expected.keys()] });
        return [compareValues(options.expected, held as unknown as WorkerValues)];
      },
      stats: () => workerStats(connection),
      waitingFor: connection.waitingFor,
      died: driver.ended,
      close: connection.close,
    };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

async function openRollouts(
  request: (op: string, fields?: Record<string, unknown>) => Promise<Record<string, unknown>>,
): Promise<VerlEngine["rollouts"] & object> {
  const { addresses } = await request("open_rollouts");
  return {
    urls: (addresses as string[]).map((address) => `http://${address}`),
    source: {
      name: "verl's checkpoint engine",
      endRequests: async () => void (await request("abort_rollouts")),
      sleep: async () => void (await request("sleep_rollouts")),
      update: async (version) => void (await request("update_rollouts", { version })),
    },
  };
}

/** A value that was changed because verl cannot use it on this machine. */
interface Adapted {
  path: string;
  from: unknown;
  to: unknown;
  reason: string;
}

/** One line per reason, because the actor, the reference and the critic have the same settings. */
function adaptations(adapted: readonly Adapted[]): string[] {
  const changes = (reason: string) =>
    adapted
      .filter((one) => one.reason === reason)
      .map(({ path, from, to }) => `${path} from ${JSON.stringify(from)} to ${JSON.stringify(to)}`);
  return [...new Set(adapted.map(({ reason }) => reason))].map(
    (reason) => `verl's settings changed, because ${reason}: ${changes(reason).join(", ")}`,
  );
}
