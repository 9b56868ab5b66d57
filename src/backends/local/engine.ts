/** Opens the local engine: prepares Python and the model, and starts the worker. */
import { join } from "node:path";
import { preparePython } from "../../python/prepare.ts";
import type { Engine, ModelInfo } from "../engine.ts";
import { requireCreatable } from "../learner-spec.ts";
import { capabilities } from "./capabilities.ts";
import { connect } from "./connection.ts";
import { threadCount, usableCores } from "./cores.ts";
import { readNumber } from "./frames.ts";
import { resolveModel } from "./models.ts";
import type { LocalEngineOptions } from "./options.ts";
import { createPolicy } from "./policy.ts";
import { startWorker } from "./worker-process.ts";

/**
 * @throws UserError when the model, device or Python cannot be used
 * @throws RunError when the set-up or the worker fails
 */
export async function openLocalEngine(options: LocalEngineOptions): Promise<Engine> {
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
      capabilities,
      model: modelInfo(options.model, header.model as WorkerModel),
      versions: header.versions as Record<string, string>,
      createPolicy: (spec) => createPolicy(connection, spec),
      async createLearner(spec) {
        requireCreatable(capabilities, spec);
        return (await createPolicy(connection, spec)).learner;
      },
      stats: () => stats(connection),
      waitingFor: connection.waitingFor,
      died: worker.ended,
      close: connection.close,
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
