/** The local engine: a Python worker that samples and learns. Starts it, sends it requests, and opens its models. */
import { statSync } from "node:fs";
import { delimiter, join } from "node:path";
import { AsyncQueue } from "../../base/concurrency.ts";
import { RunError } from "../../base/errors.ts";
import { type Death, describeDeath } from "../../base/processes.ts";
import { preparePackage, preparePython, prepareTransformers } from "../../base/python.ts";
import { concatenate } from "../../base/values.ts";
import { type MediaStore, memoryStore } from "../../images/images.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type {
  Engine,
  Learner,
  LearnerSpec,
  ModelInfo,
  Policy,
  Sample,
  SampleOptions,
  SampleRequest,
  Sampler,
  ScoreMoments,
  Scorer,
  WeightGroup,
} from "../engine.ts";
import { EngineDied, requireCreatable, requireOwn, requireSameVocabulary } from "../engine-parts.ts";
import {
  type Connection,
  connect,
  type Frame,
  type FrameArray,
  imagesOf,
  modelInfo,
  startWorker,
  UnknownMediaError,
  type WorkerModel,
  type WorkerProcess,
  workerStats,
} from "../worker/connection.ts";
import { adapterFields, createWorkerLearner, tokensAtEach } from "../worker/learner.ts";
import { mediaFields, putAgain, withMedia, workerImages } from "../worker/media.ts";
import { resolveModel } from "./models.ts";
import {
  capabilities,
  type LocalEngineOptions,
  type MemoryPlan,
  shardedCapabilities,
  threadCount,
  threadEnvironment,
  usableCores,
} from "./options.ts";

// Sampling through the worker.

/** Yields each sample as its sequence finishes. Leaving the loop early aborts the others. */
export async function* sample(
  connection: Connection,
  store: MediaStore,
  policy: number,
  requests: readonly SampleRequest[],
  options: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  if (requests.length === 0) return;
  try {
    yield* sampleOnce(connection, policy, requests, options);
  } catch (error) {
    // The worker answers so before it samples anything.
    if (!(error instanceof UnknownMediaError)) throw error;
    await putAgain(connection, store, error);
    yield* sampleOnce(connection, policy, requests, options);
  }
}

async function* sampleOnce(
  connection: Connection,
  policy: number,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  const samples = new AsyncQueue<Sample>();
  let ended = false;

  const media = requests.some(({ media }) => media !== undefined) ? mediaFields(requests) : undefined;
  const fields = { policy, requests: requests.map(encodeRequest), stream: onToken !== undefined, ...media?.fields };
  const arrays = {
    tokens: concatenate(
      Int32Array,
      requests.map(({ prompt }) => prompt),
    ),
    offsets: offsetsOf(requests.map(({ prompt }) => prompt.length)),
    ...media?.arrays,
  };
  const request = connection.request("sample", fields, arrays, (frame) => {
    try {
      if (frame.header.event === "token") reportTokens(frame, onToken);
      else samples.push(decodeSample(frame));
    } catch (error) {
      samples.fail(error);
      abort();
    }
  });
  const answered = request.answer.finally(() => {
    ended = true;
  });
  const done = samples.endWith(answered);

  function abort(...indices: number[]): void {
    if (ended) return;
    const fields: Record<string, unknown> = { sample: request.id };
    if (indices.length > 0) fields.requests = indices;
    // The answer only confirms receipt; if the worker has died, `request` itself fails.
    connection.request("abort", fields).answer.catch(() => {});
  }
  const unlisten = [
    onAbort(signal, () => abort()),
    ...requests.map((each, index) => onAbort(each.signal, () => abort(index))),
  ];

  try {
    yield* samples;
  } finally {
    for (const stop of unlisten) stop();
    abort();
    await done;
  }
}

/** Calls `listener` once the signal is aborted, or now if it is already. @returns the function that stops listening */
function onAbort(signal: AbortSignal | undefined, listener: () => void): () => void {
  if (signal?.aborted) listener();
  else signal?.addEventListener("abort", listener, { once: true });
  return () => signal?.removeEventListener("abort", listener);
}

function encodeRequest({ params, ...request }: SampleRequest): Record<string, unknown> {
  return {
    prompt_logprobs: request.promptLogprobs ?? false,
    top_logprobs: request.topLogprobs ?? 0,
    tempered_logprobs: request.temperedLogprobs ?? false,
    max_tokens: params.maxTokens,
    temperature: params.temperature,
    top_p: params.topP,
    top_k: params.topK,
    min_p: params.minP,
    stop_ids: params.stopIds,
    stop_strings: params.stopStrings,
    ignore_eos: params.ignoreEos ?? false,
    seed: params.seed,
  };
}

function decodeSample({ header, arrays }: Frame): Sample {
  const { tokens, logprobs, prompt_logprobs, top_tokens, top_logprobs, token_versions } = arrays;
  const sample: Sample = {
    request: header.request as number,
    stopReason: header.stop_reason as Sample["stopReason"],
    policyVersion: header.policy_version as number,
    tokens: expectArray(tokens, Int32Array, "tokens"),
    logprobs: expectArray(logprobs, Float32Array, "logprobs"),
  };
  if (token_versions) sample.tokenVersions = expectArray(token_versions, Int32Array, "token_versions");
  if (prompt_logprobs) sample.promptLogprobs = expectArray(prompt_logprobs, Float32Array, "prompt_logprobs");
  if (top_tokens && top_logprobs) sample.topLogprobs = rows(top_tokens, top_logprobs);
  return sample;
}

function rows(tokens: FrameArray, logprobs: FrameArray): { tokens: Int32Array; logprobs: Float32Array }[] {
  const ids = expectArray(tokens, Int32Array, "top_tokens");
  const values = expectArray(logprobs, Float32Array, "top_logprobs");
  const width = tokens.shape[1] ?? 0;
  return Array.from({ length: tokens.shape[0] ?? 0 }, (_, row) => ({
    tokens: ids.slice(row * width, (row + 1) * width),
    logprobs: values.slice(row * width, (row + 1) * width),
  }));
}

function reportTokens({ arrays }: Frame, onToken: SampleOptions["onToken"]): void {
  const requests = expectArray(arrays.requests, Int32Array, "requests");
  const tokens = expectArray(arrays.tokens, Int32Array, "tokens");
  const logprobs = expectArray(arrays.logprobs, Float32Array, "logprobs");
  for (const [row, request] of requests.entries()) onToken?.(request, tokens[row] ?? -1, logprobs[row] ?? Number.NaN);
}

function expectArray<T>(array: FrameArray | undefined, kind: new (...parts: never[]) => T, name: string): T {
  if (array?.data instanceof kind) return array.data;
  throw new RunError(`the worker's sample has no ${name}`);
}

// The local engine's sampler and learner.

/** Joining waits for the inference server's processes, broadcasting for all weights. */
const groupSeconds = 300;

/** @throws UserError when the model does not support this adapter */
export async function createPolicy(connection: Connection, store: MediaStore, spec: LearnerSpec): Promise<Policy> {
  const { policy, learner: common, call } = await createWorkerLearner(connection, store, spec);
  const again = <T>(run: () => Promise<T>) => withMedia(connection, store, run);
  let version = 0;

  const sampler: Sampler = {
    get version() {
      return version;
    },
    logprobs: "raw",
    sample: (requests, options = {}) => sample(connection, store, policy, requests, options),
    // The worker samples from what was published last; nothing is copied.
    async load(weights) {
      requireOwn(weights, String(policy));
      version = weights.version;
    },
    async close() {},
  };
  const learner: Learner = {
    ...common,
    mostLikely: (sequences, count) =>
      again(() => tokensAtEach(connection, "most_likely", { policy, count }, sequences)),
    draws: (sequences, options) => again(() => tokensAtEach(connection, "draws", { policy, ...options }, sequences)),
    async openGroup(size) {
      const { header } = await call("open_group", { backend: "nccl" });
      return {
        id: String(header.group),
        size,
        weights: header as unknown as WeightGroup["weights"],
        join: async () => void (await call("join_group", { size, timeout_seconds: groupSeconds })),
        send: async () => void (await call("broadcast", { timeout_seconds: groupSeconds })),
      };
    },
  };
  return { sampler, learner };
}

// Starts the worker of the local engine, and explains why it ended.

interface LocalWorkerOptions {
  /** The Python executable. */
  python: string;
  /** Folders with further packages, as in PYTHONPATH. */
  packages?: string | undefined;
  /** Threads of the tensor library; 0 is one per core. */
  threads: number;
  /** More than 1: the worker of several processes, which only trains. */
  processes?: number | undefined;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
}

/**
 * Sizes of torch's two caches of compiled matrix products on a CPU. Each number of rows needs its own product of about
 * 0.7 MB, ragged batches always bring new numbers, and a microbatch uses about thirty. The default of 1024 would fill half
 * a gigabyte within a few steps and save no time. The user's environment takes precedence.
 */
const kernelCaches = { ONEDNN_PRIMITIVE_CACHE_CAPACITY: "64", LRU_CACHE_CAPACITY: "64" };

/** @throws RunError when Python cannot be started at all */
export const startLocalWorker = ({
  python,
  packages,
  threads,
  processes = 1,
  logFile,
}: LocalWorkerOptions): Promise<WorkerProcess> =>
  startWorker({
    python,
    packages,
    module: processes > 1 ? "hone_sharded" : "hone_worker",
    env: {
      ...kernelCaches,
      ...process.env,
      ...threadEnvironment(threads, usableCores(), process.env),
      HONE_RANKS: String(processes),
    },
    logFile,
    graceSeconds: 3,
    // With several processes, the first one does not hold weights, so its memory does not explain its end.
    died: (death) => workerDied(processes > 1 ? { ...death, residentBytes: null } : death),
  });

const hints = {
  SIGKILL:
    "Lower local.micro_batch_tokens, local.max_sample_rows or data.max_response_length, set local.gradient_checkpointing=true, or use a machine with more memory.",
  SIGSEGV:
    "Run `hone doctor`. If it happens again, try local.device=cpu or local.dtype=float32 to find the part that fails.",
  SIGILL: "Run on another machine, or point HONE_PYTHON at a Python whose torch was built for this one.",
};

export function workerDied(death: Death): EngineDied {
  const { message, hint } = describeDeath(death, { name: "the local engine's worker", hints });
  return new EngineDied(message, { hint });
}

// Opens the local engine: prepares Python and the model, and starts the worker.

/**
 * @throws UserError when the model, device or Python cannot be used
 * @throws RunError when the set-up or the worker fails
 */
export async function openLocalEngine(options: LocalEngineOptions): Promise<Engine> {
  const { connection, model, seen, versions, nccl, memory, died } = await openWorker(options, { plan: options.plan });
  const store = options.media ?? memoryStore();
  const able = (options.processes ?? 1) > 1 ? shardedCapabilities : capabilities;
  const others = new Set<Connection>();

  async function openOther(name: string, load: Parameters<typeof openWorker>[1]) {
    // Trained as the policy is: `auto` is chosen by the memory of all models together.
    const chosen = memory === undefined ? {} : { gradientCheckpointing: memory.gradient_checkpointing };
    const opened = await openWorker({ ...options, ...chosen, model: name }, load);
    others.add(opened.connection);
    return opened;
  }

  async function learnerOfOther(name: string, spec: LearnerSpec): Promise<Learner> {
    const other = await openOther(name, { head: spec.head });
    const close = async () => {
      others.delete(other.connection);
      await other.connection.close();
    };
    try {
      requireSameVocabulary(model, other.model);
      const { learner } = await createPolicy(other.connection, store, spec);
      return { ...learner, maxLength: other.model.maxLength, close };
    } catch (error) {
      await close();
      throw error;
    }
  }

  return {
    capabilities: able,
    model,
    versions,
    ...(nccl === null ? {} : { nccl }),
    ...(memory === undefined ? {} : { memory }),
    ...(able.images && seen.placeholder ? { images: workerImages(connection, store, seen.placeholder) } : {}),
    ...(seen.reason === undefined ? {} : { imagesReason: seen.reason }),
    createPolicy: (spec) => createPolicy(connection, store, spec),
    async createLearner({ model: name, ...spec }) {
      requireCreatable(able, spec);
      return name === undefined ? (await createPolicy(connection, store, spec)).learner : learnerOfOther(name, spec);
    },
    async createScorer(name) {
      const { connection: other, model: judge, moments } = await openOther(name, { head: "score" });
      return scorer(other, judge, moments);
    },
    stats: () => workerStats(connection),
    waitingFor: () => [connection, ...others].flatMap(({ waitingFor }) => waitingFor()),
    died,
    async close() {
      await Promise.all([connection, ...others].map(({ close }) => close()));
    },
  };
}

function scorer(connection: Connection, model: ModelInfo, moments: ScoreMoments | undefined): Scorer {
  return {
    model,
    ...(moments ? { moments } : {}),
    async score(sequences) {
      const arrays = {
        tokens: concatenate(Int32Array, sequences),
        offsets: offsetsOf(sequences.map(({ length }) => length)),
      };
      const { scores } = (await connection.request("score", {}, arrays).answer).arrays;
      if (!(scores?.data instanceof Float32Array)) throw new RunError("the worker answered score without scores");
      return scores.data;
    },
  };
}

/** The field of the answer to `load` (worker/PROTOCOL.md). */
interface WorkerMemory extends NonNullable<Engine["memory"]> {
  gradient_checkpointing: boolean;
}

interface OpenedWorker {
  connection: Connection;
  model: ModelInfo;
  seen: ReturnType<typeof imagesOf>;
  moments: ScoreMoments | undefined;
  versions: Record<string, string>;
  nccl: string | null;
  memory: WorkerMemory | undefined;
  died: Promise<Error>;
}

/** Starts a worker with a model. `head`: as in the protocol. */
export async function openWorker(
  options: LocalEngineOptions,
  { head, plan }: { head?: "score" | "value" | undefined; plan?: MemoryPlan | undefined } = {},
): Promise<OpenedWorker> {
  const status = options.onStatus ?? (() => {});
  status("preparing Python and the model");
  const model = await resolveModel(options.model);
  const { home, python } = await preparePython();
  // Reward models are loaded by one process.
  const processes = head === "score" ? 1 : (options.processes ?? 1);
  const threads = threadCount(options.threads ?? 0, Math.max(1, Math.floor(usableCores() / processes)), process.env);
  const needsDeepSpeed = processes > 1 && options.sharding?.startsWith("zero");
  const optimizer = options.optimizer ?? "adamw";
  const more = needsDeepSpeed ? "deepspeed" : optimizer === "adamw_8bit" ? "bitsandbytes" : undefined;
  const folders = [
    ...(options.transformers === undefined ? [] : [await prepareTransformers(options.transformers)]),
    ...(more === undefined ? [] : [await preparePackage(more)]),
  ];
  const packages = folders.join(delimiter) || undefined;

  status("starting the worker");
  const worker = await startLocalWorker({ python, packages, threads, processes, logFile: options.logFile });
  const connection = connect(worker);
  try {
    status(`loading ${options.model}`);
    const { header } = await connection.request(
      "load",
      {
        model,
        name: options.model,
        head,
        device: options.device ?? "auto",
        dtype: options.dtype ?? "auto",
        threads,
        cache_dir: options.cacheDir ?? join(home, "models"),
        chunk_size: options.chunkSize ?? 256,
        micro_batch_tokens: options.microBatchTokens ?? 0,
        gradient_checkpointing: options.gradientCheckpointing ?? false,
        optimizer,
        plan: plan && (await planFields(plan)),
        max_sample_rows: options.maxSampleRows ?? 256,
        router_replay: options.routerReplay ?? "disabled",
        router_aux_loss: options.routerAuxLoss ?? 0,
        ...(processes > 1 ? shardingFields(options) : {}),
        processor: head === undefined ? options.processor : undefined,
      },
      {},
      ({ header }) => {
        if (header.event === "status") status(String(header.text));
      },
    ).answer;
    const found = header.model as WorkerModel;
    return {
      connection,
      model: modelInfo(options.model, found),
      seen: imagesOf(found),
      moments: momentsOf(found),
      versions: header.versions as Record<string, string>,
      nccl: header.nccl as string | null,
      memory: header.memory as WorkerMemory | undefined,
      died: worker.ended,
    };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

async function planFields({ others, ...plan }: MemoryPlan) {
  const resolved = others.map(async ({ model, ...other }) => ({
    ...other,
    adapter: adapterFields(other.adapter),
    ...(model === undefined ? {} : { model: await resolveModel(model) }),
  }));
  return { ...plan, adapter: adapterFields(plan.adapter), others: await Promise.all(resolved) };
}

const shardingFields = (options: LocalEngineOptions) => ({
  sharding: options.sharding ?? "fsdp",
  offload_parameters: options.offloadParameters ?? false,
  offload_optimizer: options.offloadOptimizer ?? false,
  sequence_parallel: options.sequenceParallel ?? 1,
});

function momentsOf({ score_moments: moments }: WorkerModel): ScoreMoments | undefined {
  return moments ? { mean: moments[0], std: moments[1] } : undefined;
}

/**
 * The folder with a model's configuration, tokenizer and weights in Hugging Face's format, downloaded or converted on first use.
 *
 * @param name an alias, a Hugging Face directory, a .gguf file or a hub id
 * @throws UserError when the model cannot be used
 */
export async function modelFolder(name: string): Promise<string> {
  const model = await resolveModel(name);
  if (statSync(model, { throwIfNoEntry: false })?.isDirectory()) return model;
  const { home, python } = await preparePython();
  const connection = connect(await startLocalWorker({ python, threads: 0 }));
  try {
    const request = { model, cache_dir: join(home, "models") };
    const { header } = await connection.request("find_model", request).answer;
    return header.directory as string;
  } finally {
    await connection.close();
  }
}
