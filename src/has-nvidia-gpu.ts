import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";

/** Whether this machine has an NVIDIA GPU that programs can use: its driver, or at least nvidia-smi. */
export function hasNvidiaGpu(environment: NodeJS.ProcessEnv = process.env): boolean {
  if (process.platform !== "linux") return false;
  if (existsSync("/proc/driver/nvidia/version")) return true;
  return (environment.PATH ?? "").split(delimiter).some((folder) => existsSync(join(folder, "nvidia-smi")));
}
