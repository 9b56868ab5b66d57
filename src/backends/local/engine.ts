/** Opens the local engine: prepares Python and the model, and starts the worker. */

import { join } from "node:path";
import { concatenate } from "../../concatenate.ts";
import { RunError } from "../../errors.ts";
import { preparePython } from "../../python/prepare.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { Engine, ModelInfo, Scorer } from "../engine.ts";
import { requireCreatable } from "../learner-spec.ts";
import { capabilities } from "./capabilities.ts";
import { type Connection, connect } from "./channel/connection.ts";
import { readNumber } from "./channel/frames.ts";
import { threadCount, usableCores } from "./cores.ts";
import { resolveModel } from "./models.ts";
import type { LocalEngineOptions } from "./options.ts";
import { createPolicy } from "./policy.ts";
import { startWorker } from "./worker-process.ts";

/**
 * @throws UserError when the model, device or Python cannot be used
 * @throws RunError when the set-up or the worker fails
 */
export async function openLocalEngine(options: LocalEngineOptions): Promise<Engine> {
  const { connection, model, versions, died } = await openWorker(options);
  const scorers: Connection[] = [];
  return {
    capabilities,
    model,
    versions,
    createPolicy: (spec) => createPolicy(connection, spec),
    async createLearner(spec) {
      requireCreatable(capabilities, spec);
      return (await createPolicy(connection, spec)).learner;
    },
    async createScorer(name) {
      const opened = await openWorker({ ...options, model: name }, "score");
      scorers.push(opened.connection);
      return scorer(opened.connection, opened.model);
    },
    stats: () => stats(connection),
    waitingFor: () => [connection, ...scorers].flatMap(({ waitingFor }) => waitingFor()),
    died,
    async close() {
      await Promise.all([connection, ...scorers].map(({ close }) => close()));
    },
  };
}

function scorer(connection: Connection, model: ModelInfo): Scorer {
  return {
    model,
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

/** Starts a worker with a model. `head`: as in the protocol. */
async function openWorker(options: LocalEngineOptions, head?: "score") {
  const status = options.onStatus ?? (() => {});
  status("preparing Python and the model");
  const model = await resolveModel(options.model);
  const { home, python } = await preparePython();
  const threads = threadCount(options.threads ?? 0, usableCores(), process.env);

  status("starting the worker");
  const worker = await startWorker({ python, threads, logFile: options.logFile });
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
        max_sample_rows: options.maxSampleRows ?? 256,
      },
      {},
      ({ header }) => {
        if (header.event === "status") status(String(header.text));
      },
    ).answer;
    return {
      connection,
      model: modelInfo(options.model, header.model as WorkerModel),
      versions: header.versions as Record<string, string>,
      died: worker.ended,
    };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

async function stats(connection: ReturnType<typeof connect>): Promise<Record<string, number>> {
  const { header } = await connection.request("stats").answer;
  const entries = Object.entries(header.stats as Record<string, unknown>);
  return Object.fromEntries(entries.map(([name, value]) => [name, readNumber(value)]));
}

/** What the worker reports of its model. */
interface WorkerModel extends Pick<ModelInfo, "directory" | "architecture" | "dtype" | "device" | "attention"> {
  parameters: number;
  vocabulary_size: number;
  max_length: number;
  eos_token_ids: number[];
  attention_reason?: string | null;
}

function modelInfo(name: string, info: WorkerModel): ModelInfo {
  const { vocabulary_size: vocabularySize, max_length: maxLength, eos_token_ids: eosTokenIds, ...rest } = info;
  const { attention_reason: attentionReason, ...own } = rest;
  const model = { ...own, name, vocabularySize, maxLength, eosTokenIds };
  return attentionReason ? { ...model, attentionReason } : model;
}
