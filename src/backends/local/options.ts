/** The options of the local engine: what `auto` means on this machine, and the checks of cores, memory and GPUs. */
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { UserError } from "../../base/errors.ts";
import { hasNvidiaGpu } from "../../base/python.ts";
import type { Config } from "../../config/schema.ts";
import { maskedSecret } from "../../config/secrets.ts";
import type { MediaStore } from "../../images/images.ts";
import type { AdapterSpec, Capabilities, OtherModel } from "../engine.ts";

// What `auto` in settings of the local engine means on this machine.

/** Whether the trainer uses NVIDIA GPUs. */
const usesGpus = ({ local: { device } }: Config) => device !== "cpu" && device !== "mps" && hasNvidiaGpu();

/** What samples: `local.sampler.type`. */
export function samplerType(config: Config): "own" | "vllm" | "sglang" {
  const { type, url } = config.local.sampler;
  if (type !== "auto") return type;
  return url !== null || usesGpus(config) ? "vllm" : "own";
}

/** How many processes train: `local.processes`. With auto, one for each visible GPU before the first one of the inference server. */
export function trainingProcesses(config: Config): number {
  const { sampler, device } = config.local;
  if (config.local.processes !== "auto") return config.local.processes;
  if (!usesGpus(config) || device.includes(":")) return 1;
  return Math.max(1, Math.min(visibleGpus(), ...(sampler.devices ?? [])));
}

/** @returns 1 if unknown */
function visibleGpus(): number {
  const listed = process.env.CUDA_VISIBLE_DEVICES;
  if (listed !== undefined) return listed.split(",").filter((name) => name.trim() !== "").length;
  try {
    return readdirSync("/proc/driver/nvidia/gpus").length;
  } catch {
    // Some containers hide the driver's folder.
  }
  try {
    return execFileSync("nvidia-smi", ["-L"], { encoding: "utf8", timeout: 10_000 }).match(/^GPU \d+/gm)?.length ?? 1;
  } catch {
    return 1;
  }
}

// The options of the local engine, and how a configuration sets them.

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

// The capabilities of the local engine.

export const capabilities: Capabilities = {
  engine: "local",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  loraTargets: ["attn", "mlp", "experts", "unembed"],
  outputs: ["logprobs", "entropy", "values", "concentration", "targets", "most_likely", "draws", "scores"],
  sampling: [
    "top_p",
    "top_k",
    "min_p",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "tempered_logprobs",
    "abort",
    "tokens_streamed",
  ],
  multiplePolicies: true,
  otherModels: true,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter", "merged"],
  images: true,
  trainsVision: true,
  routerReplay: ["R2"],
};

const denseTargets = capabilities.loraTargets.filter((target) => target !== "experts");

/** With several training processes; another process samples from its own copy of the weights. */
export const shardedCapabilities: Capabilities = {
  ...capabilities,
  engine: "local engine in several processes",
  outputs: capabilities.outputs.filter((name) => name !== "most_likely" && name !== "draws"),
  frozenSampler: { lora: true, full: true },
  loraTargets: denseTargets,
  trainsVision: false,
  routerReplay: [],
};

/** With an inference server, which samples from its own copy of all weights. */
export const capabilitiesWith = (kind: "vllm" | "sglang", trainer = capabilities): Capabilities => ({
  ...trainer,
  engine: `${trainer.engine} with ${kind === "vllm" ? "a vLLM" : "an SGLang"} server`,
  sampleLogprobs: kind === "vllm" ? "raw" : "processed",
  sampling: trainer.sampling.filter((name) => name !== "tempered_logprobs"),
  frozenSampler: { lora: true, full: true },
  loraTargets: denseTargets,
  routerReplay: trainer.routerReplay?.length && kind === "vllm" ? ["R2", "R3"] : (trainer.routerReplay ?? []),
  // Servers keep the features of images when weights change.
  trainsVision: false,
});

// How many cores this process may use, and how the worker's threads wait.

/** Cores that this process may use: the affinity mask, and a container's quota. */
export function usableCores(): number {
  return Math.max(1, Math.min(availableParallelism(), Math.ceil(containerQuota() ?? Number.POSITIVE_INFINITY)));
}

function containerQuota(): number | null {
  try {
    const [quota, period] = readFileSync("/sys/fs/cgroup/cpu.max", "utf8").trim().split(" ").map(Number);
    return quota !== undefined && period !== undefined && quota > 0 ? quota / period : null;
  } catch {
    return null; // No such limit on this system.
  }
}

/**
 * How threads wait between two operations. Threads that spin for milliseconds are up to fifty times slower when another
 * program uses a core; threads that sleep immediately are 50% slower on an idle machine. These spin for about 0.1 ms and
 * then sleep: at most a tenth slower than always spinning on an idle machine, and about twice the time of one thread on a
 * busy one. The user's environment takes precedence.
 */
export function threadEnvironment(
  threads: number,
  cores: number,
  environment: NodeJS.ProcessEnv,
): Record<string, string> {
  const count = { OMP_NUM_THREADS: String(threadCount(threads, cores, environment)) };
  if (environment.OMP_WAIT_POLICY !== undefined || environment.GOMP_SPINCOUNT !== undefined) return count;
  return { ...count, OMP_WAIT_POLICY: "passive", GOMP_SPINCOUNT: "3000" };
}

/** @param threads 0: `OMP_NUM_THREADS` if set, otherwise one per core */
export function threadCount(threads: number, cores: number, environment: NodeJS.ProcessEnv): number {
  if (threads > 0) return threads;
  const asked = Number(environment.OMP_NUM_THREADS);
  return Number.isInteger(asked) && asked > 0 ? asked : cores;
}
