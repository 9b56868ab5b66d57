/** The options of the local engine, and how a configuration sets them. */
import type { Config } from "../../config/schema.ts";
import { maskedSecret } from "../../config/secrets/without-secrets.ts";
import { UserError } from "../../errors.ts";
import type { MediaStore } from "../../images/media-store.ts";
import type { AdapterSpec, OtherModel } from "../engine.ts";
import { samplerType, trainingProcesses } from "./machine.ts";

/** What the worker computes the memory of training from (worker/PROTOCOL.md, `load`). */
export interface MemoryPlan {
  adapter: AdapterSpec;
  /** The longest sequence. */
  tokens: number;
  /** Sequences that the worker itself samples at the same time. */
  rows: number;
  /** The inference server's share of the device's memory while the worker trains. */
  server_share: number;
  /** The other models of the run. */
  others: readonly OtherModel[];
}

export interface LocalEngineOptions {
  /** An alias, a Hugging Face directory, a .gguf file or a hub id. */
  model: string;
  /** `auto` (default), `cpu`, `cuda`, `cuda:N` or `mps`. */
  device?: string;
  dtype?: "auto" | "float32" | "bfloat16";
  /** Threads of the tensor library; 0 (default) is one per core. */
  threads?: number;
  /** Trained positions whose logits are in memory at the same time. */
  chunkSize?: number;
  /** Packed tokens per forward-backward; 0 (default) chooses by memory. */
  microBatchTokens?: number;
  /** `auto`: if training does not fit otherwise, according to `plan`. */
  gradientCheckpointing?: "auto" | boolean;
  optimizer?: Config["training"]["optimizer"];
  /** What will be trained: its memory is computed before weights are loaded. Default: nothing is computed. */
  plan?: MemoryPlan;
  /** Ranks that train one model together; default 1. */
  processes?: number;
  /** How several processes divide weights, gradients and optimizer state. */
  sharding?: Config["local"]["sharding"];
  offloadParameters?: boolean;
  offloadOptimizer?: boolean;
  /** Ranks that share each sequence; default 1. */
  sequenceParallel?: number;
  /** Another version of transformers than the locked one. */
  transformers?: string;
  /** `R2`: keep the experts that training chose first for a sequence, until the next publish. `R3`: those of the sampler. */
  routerReplay?: Config["rllm"]["algorithm"]["router_replay"];
  /** The weight of transformers' auxiliary loss for mixtures of experts. */
  routerAuxLoss?: number;
  /** Sequences sampled at the same time. */
  maxSampleRows?: number;
  /** Where converted models are kept; default: `models` where set-up installs. */
  cacheDir?: string;
  /** A folder or hub id with an image processor; default: the model's own. */
  processor?: string;
  /** Keeps the images of prompts; default: memory. */
  media?: MediaStore;
  /** The worker's log is appended here. */
  logFile?: string;
  /** Called with what happens until the engine is ready. */
  onStatus?: (text: string) => void;
}

export function localEngineOptions(
  config: Config,
  hooks: Pick<LocalEngineOptions, "logFile" | "media" | "onStatus"> = {},
): LocalEngineOptions {
  const { local, model, rllm } = config;
  return {
    model: model.name,
    device: local.device,
    dtype: local.dtype,
    threads: local.threads,
    chunkSize: local.chunk_size,
    microBatchTokens: local.micro_batch_tokens,
    gradientCheckpointing: local.gradient_checkpointing,
    optimizer: config.training.optimizer,
    ...(local.transformers === null ? {} : { transformers: local.transformers }),
    routerReplay: rllm.algorithm.router_replay,
    routerAuxLoss: local.router_aux_loss,
    processes: trainingProcesses(config),
    sharding: local.sharding,
    offloadParameters: local.offload_parameters,
    offloadOptimizer: local.offload_optimizer,
    sequenceParallel: local.sequence_parallel,
    maxSampleRows: local.max_sample_rows,
    ...(model.processor === null ? {} : { processor: model.processor }),
    ...hooks,
  };
}

/** The running inference servers that sample, if any do. */
export function serversOf(config: Config): { kind: "vllm" | "sglang"; urls: readonly string[] } | undefined {
  const { url } = config.local.sampler;
  const kind = samplerType(config);
  if (kind === "own" || url === null) return undefined;
  return { kind, urls: typeof url === "string" ? [url] : url };
}

/** The API key of the inference servers. @throws UserError when it was not saved with the run */
export function serverKey({ local: { sampler } }: Config): string | undefined {
  const fromEnvironment = process.env.VLLM_API_KEY || undefined;
  const key = sampler.api_key ?? fromEnvironment;
  if (key !== maskedSecret) return key;
  if (fromEnvironment !== undefined) return fromEnvironment;
  throw new UserError("local.sampler.api_key was not saved with the run", {
    hint: "set it again, or set the environment variable VLLM_API_KEY",
  });
}
