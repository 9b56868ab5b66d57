/**
 * The single source of Hone's configuration: types, defaults, validation, help, editor completion and the reference
 * pages derive from it. Keys are spelled as in the reference documents; each section has its own file in schema/.
 */
import { z } from "zod";
import { backends, section } from "./schema/about.ts";
import { agent, env, workflow } from "./schema/agents.ts";
import { algorithm, critic, stepwiseAdvantage } from "./schema/algorithm.ts";
import { data, rllmData } from "./schema/data.ts";
import { distill, distillation } from "./schema/distillation.ts";
import { compactFiltering, dynamicSampling, processingFlags, rejectionSample } from "./schema/filters.ts";
import { local } from "./schema/local.ts";
import { model } from "./schema/model.ts";
import { reward } from "./schema/reward.ts";
import { rollout, samplingBlock } from "./schema/rollout.ts";
import { remoteRuntime } from "./schema/runtime.ts";
import { gateway, sdk } from "./schema/sdk.ts";
import { dpo, sft } from "./schema/supervised.ts";
import { rolloutEngine, tinkerKeys } from "./schema/tinker.ts";
import { asyncTraining, episodeLogging, trainer } from "./schema/trainer.ts";
import { training, validation } from "./schema/training.ts";

const rllm = section({
  backend: z.enum(backends).default("local").describe("Backend that samples and trains.").meta({
    note: "rllm/backend=tinker on the command line also loads that backend's defaults.",
  }),
  on_unsupported: z
    .enum(["error", "warn"])
    .default("error")
    .describe(
      "How to treat settings that the backend or the machine does not support: error stops before the run starts; warn continues with their defaults. Settings that contradict each other always stop the run.",
    ),
  data: rllmData,
  agent,
  env,
  workflow,
  rollout,
  trainer,
  algorithm,
  stepwise_advantage: stepwiseAdvantage,
  critic,
  ...processingFlags,
  compact_filtering: compactFiltering,
  rejection_sample: rejectionSample,
  dynamic_sampling: dynamicSampling,
  reward,
  distill,
  sdk,
  gateway,
  episode_logging: episodeLogging,
  async_training: asyncTraining,
  remote_runtime: remoteRuntime,
});

export const configSchema = z.strictObject({
  rllm,
  ...tinkerKeys,
  model,
  training,
  sft,
  dpo,
  validation,
  sampling: samplingBlock,
  rollout_engine: rolloutEngine,
  data,
  distillation,
  local,
});

/** The composed configuration with all defaults filled in. */
export type Config = z.output<typeof configSchema>;
/** The configuration as a user writes it: any part of the tree. */
export type ConfigInput = z.input<typeof configSchema>;
