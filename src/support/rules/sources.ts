/** What settings require of what a run learns from: rollouts, rows or pairs. */
import type { Rule } from "../../backends/rule.ts";
import { below, contradicts, needs, needsValue, under, withOlderNames } from "./make-rules.ts";

/** What only an update from rollouts reads. Validation tasks are attempted as usual. */
const ofRollouts = [
  ...withOlderNames(["rllm.rollout.n", ...below("rllm.rollout.train")]),
  "training.group_size",
  ...below("rllm.algorithm", "lr_schedule", "warmup_steps", "warmup_steps_ratio", "min_lr_ratio", "router_replay"),
  ...below("rllm.stepwise_advantage"),
  ...below("rllm.critic"),
  ...below("rllm.compact_filtering"),
  ...below("rllm.rejection_sample"),
  ...below("rllm.dynamic_sampling"),
  ...below("rllm.reward.overlong"),
  ...under("rllm.reward", "clip", "running_norm", "running_norm_minus_mean"),
  ...under("rllm", "mask_truncated_samples", "filter_token_mismatch"),
  "rllm.agent.overlong_filter",
];

export const sources: readonly Rule[] = [
  {
    outcome: "invalid",
    keys: ["training.source"],
    isMet: ({ config, script }) => script === undefined || (script.source ?? "rollouts") === config.training.source,
    because: ({ script }) => `this experiment learns from ${script?.source ?? "rollouts"}`,
    hint: "hone sft learns from rows, hone dpo from pairs, hone train from rollouts",
    atDefault: true,
  },
  contradicts(
    ["rllm.async_training.enable"],
    "training.source=rollouts",
    ({ training, rllm }) => !rllm.async_training.enable || training.source === "rollouts",
  ),
  needsValue("training.source", "rollouts", ofRollouts),
  needsValue("training.source", "rows", below("sft")),
  needsValue("training.source", "pairs", below("dpo")),
  needs(
    "hone sft or hone dpo",
    under("data", "train_files", "val_files", "max_length", "truncation"),
    ({ training }) => training.source !== "rollouts",
  ),
  needsValue("dpo.loss_type", "robust", ["dpo.label_smoothing"]),
];
