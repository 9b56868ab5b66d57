/** What `auto` in settings of the local engine means on this machine. */
import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import type { Config } from "../../config/schema.ts";
import { hasNvidiaGpu } from "../../python/find.ts";

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
