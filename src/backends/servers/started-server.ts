/** What the settings say of the inference server that Hone starts: for `local.sampler.type` without `local.sampler.url`. */

import { hasNvidiaGpu } from "../../base/python.ts";
import type { Config } from "../../config/schema.ts";
import type { ModelInfo } from "../engine.ts";
import { readModelType } from "../local/models.ts";
import { samplerType } from "../local/options.ts";
import type { Rule } from "../rule.ts";
import type { GpuOptions, LaunchOptions, Place } from "./launch.ts";

export const startsServer = (config: Config) => samplerType(config) !== "own" && config.local.sampler.url === null;

/** Whether the server that Hone starts runs on GPUs. */
export const isOnGpu = ({ local: { device, sampler } }: Config) =>
  hasNvidiaGpu() && (device !== "cpu" || sampler.devices !== null);

/** Whether the server frees its memory while the trainer uses the same GPU. */
export const sleepsWhileTraining = (config: Config) =>
  startsServer(config) && isOnGpu(config) && config.local.sampler.sleep && alternates(config);

/** Whether the server and the trainer use the same GPU, one after the other. */
export const alternates = ({ local, rllm }: Config) => !rllm.async_training.enable && usesTrainersGpu(local);

/** The share of the trainer's GPU that an inference server has while the trainer works. */
export function serverShare(config: Config): number {
  const shares = startsServer(config) && isOnGpu(config) && usesTrainersGpu(config.local);
  return shares && !sleepsWhileTraining(config) ? config.local.sampler.memory_share : 0;
}

function usesTrainersGpu({ device, sampler }: Config["local"]): boolean {
  const own = gpuOf(device);
  return own !== undefined && (sampler.devices?.includes(own) ?? true);
}

/** The trainer's GPU. */
const gpuOf = (device: string) => (device === "cpu" ? undefined : Number(/^cuda:(\d+)$/.exec(device)?.[1] ?? 0));

/**
 * Whether all weights are sent by NCCL, from the trainer's GPU to a server that Hone starts. This requires vLLM on other
 * GPUs than the trainer's. Otherwise they are sent through files.
 */
export function broadcasts(
  config: Config,
  { nccl, model: { device } }: { nccl?: string | undefined; model: Pick<ModelInfo, "device"> },
): boolean {
  const {
    local: { sampler },
    model,
  } = config;
  const own = gpuOf(device);
  const isApart = own !== undefined && sampler.devices !== null && !sampler.devices.includes(own);
  return samplerType(config) === "vllm" && model.lora_rank === 0 && nccl !== undefined && isApart;
}

/** What such a server requires of settings and of the machine. */
export const startedServerRules: readonly Rule[] = [
  {
    outcome: "invalid",
    keys: ["local.sampler.devices"],
    requires: "one GPU for each part of the model (local.sampler.tensor_parallel)",
    isMet: (situation) => {
      const { devices, tensor_parallel: parts } = situation.config.local.sampler;
      return !startsServer(situation.config) || devices === null || devices.length >= parts;
    },
    hint: "local.sampler.devices=[0,1] with local.sampler.tensor_parallel=2",
  },
  {
    outcome: "unsupported",
    keys: ["local.sampler.type"],
    requires: "an NVIDIA GPU that the run uses, or local.sampler.url, to sample with SGLang",
    isMet: ({ config }, value) => value !== "sglang" || !startsServer(config) || isOnGpu(config),
    hint: "local.sampler.type=vllm runs on a CPU too",
  },
  {
    outcome: "unsupported",
    keys: ["rllm.algorithm.router_replay"],
    when: "with R3 and a vLLM server that Hone starts",
    requires: "an NVIDIA GPU, because vLLM's package for CPUs has no Triton, without which it does not return experts",
    isMet: ({ config }, value) => value !== "R3" || !startsServer(config) || isOnGpu(config),
    hint: "rllm.algorithm.router_replay=R2 replays the experts that the trainer chose first",
  },
];

/** @returns why SGLang cannot read images of the model, as a clause; undefined if it can */
export function refusalOfImages(folder: string): string | undefined {
  const type = readModelType(folder);
  return type === "qwen2_vl" || type === "qwen2_5_vl"
    ? undefined
    : `SGLang accepts tokens with images only for Qwen2-VL and Qwen2.5-VL, not for ${type} (local.sampler.type=vllm does)`;
}

export function launchOptions(
  config: Config,
  { model, images }: { model: LaunchOptions["model"] & Pick<ModelInfo, "device">; images?: unknown },
  onGpu: boolean,
): Omit<LaunchOptions, keyof Place> {
  const { rllm, model: trained } = config;
  const staleness = rllm.async_training.enable ? Math.ceil(rllm.async_training.staleness_threshold) : 0;
  return {
    model,
    seed: rllm.trainer.seed,
    loraRank: trained.lora_rank === 0 ? undefined : trained.lora_rank,
    // The current and the previous adapter, the one that is being loaded, and those that unfinished rollouts use.
    adapters: 3 + staleness,
    tensorParallel: config.local.sampler.tensor_parallel,
    readsImages: images !== undefined,
    routing: rllm.algorithm.router_replay === "R3",
    timeoutSeconds: config.local.sampler.timeout,
    gpu: onGpu ? gpuOptions(config, model.device, process.env.CUDA_VISIBLE_DEVICES) : undefined,
  };
}

/**
 * @param device of the trainer, such as "cuda:0"
 * @param visible CUDA_VISIBLE_DEVICES; device indexes refer to this list
 */
export function gpuOptions(config: Config, device: string, visible: string | undefined): GpuOptions {
  const { sampler } = config.local;
  const names = visible?.split(",").map((name) => name.trim());
  const own = /^cuda:(\d+)$/.exec(device)?.[1];
  const shared = own === undefined || sampler.tensor_parallel > 1 ? undefined : [Number(own)];
  const devices = sampler.devices ?? shared;
  return {
    visible: devices?.map((index) => names?.[index] ?? index).join(","),
    memoryShare: sampler.memory_share,
    sleep: sampler.sleep && alternates(config),
  };
}
