/** Losses that verl's workers compute themselves: verl's registered losses that have the gradient of Hone's. */
import type { Loss } from "../../algorithms/types.ts";
import { countsOf } from "../../trajectories/batch.ts";
import type { NativeLoss } from "../channel/native-loss.ts";

/** Above every ratio, because verl limits log-ratios to 20. */
const unbounded = 1e9;

/** verl adds a plain sum over tokens; `settings` are keys of `actor_rollout_ref.actor`. */
export function nativeLoss(loss: Loss, offsets: Int32Array): NativeLoss | undefined {
  const hosted = loss.hosted?.();
  const found = hosted && verlLoss(hosted.name, hosted.config);
  if (hosted === undefined || found === undefined) return undefined;
  const { weights, logprobs, advantages = weights } = hosted.inputs;
  if (advantages === undefined) return undefined;
  const inputs = {
    // verl divides the loss of sapo by the sequence's number of tokens.
    advantages: found.name === "sapo" ? timesCounts(advantages, offsets) : advantages,
    ...(logprobs ? { old_logprobs: logprobs } : {}),
  };
  return { ...found, inputs };
}

function verlLoss(name: string, config: Readonly<Record<string, number>>): Omit<NativeLoss, "inputs"> | undefined {
  const { clip_low_threshold: low = 0, clip_high_threshold: high = unbounded, dual = unbounded, beta = 0 } = config;
  const bounds = { clip_ratio_low: 1 - low, clip_ratio_high: high - 1 };
  if (name === "cross_entropy") return { name: "gpg", settings: {} };
  if (name === "ppo" || name === "ppo_dual_clip" || name === "importance_sampling") {
    return { name: "vanilla", settings: { ...bounds, clip_ratio_c: dual } };
  }
  if (name === "cispo" || name === "gspo") return { name, settings: bounds };
  if (name === "sapo") return { name, settings: { ...config } };
  // verl refuses 0.
  if (name === "dro" && beta > 0) return { name, settings: { policy_loss: { dro_beta: beta } } };
  return undefined;
}

function timesCounts(values: Float32Array, offsets: Int32Array): Float32Array {
  const counts = Array.from(countsOf(offsets)).flatMap((count) => Array<number>(count).fill(count));
  return values.map((value, token) => value * counts[token]!);
}
