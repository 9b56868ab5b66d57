/** Opens the local engine: prepares Python and the model, and starts the worker. */

import { delimiter, join } from "node:path";
import { concatenate } from "../../concatenate.ts";
import { RunError } from "../../errors.ts";
import { memoryStore } from "../../images/media-store.ts";
import { preparePackage, preparePython, prepareTransformers } from "../../python/prepare.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import { type Connection, connect } from "../channel/connection.ts";
import { adapterFields } from "../channel/learner.ts";
import { workerImages } from "../channel/media.ts";
import { imagesOf, modelInfo, type WorkerModel, workerStats } from "../channel/reports.ts";
import type { Engine, Learner, LearnerSpec, ModelInfo, ScoreMoments, Scorer } from "../engine.ts";
import { requireCreatable } from "../learner-spec.ts";
import { requireSameVocabulary } from "../same-vocabulary.ts";
import { capabilities, shardedCapabilities } from "./capabilities.ts";
import { threadCount, usableCores } from "./cores.ts";
import { resolveModel } from "./models.ts";
import type { LocalEngineOptions, MemoryPlan } from "./options.ts";
import { createPolicy } from "./policy.ts";
import { startLocalWorker } from "./worker-process.ts";

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
