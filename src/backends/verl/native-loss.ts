/** Losses that verl's workers compute themselves: verl's registered losses that have the gradient of Hone's. */
import type { Loss } from "../../algorithms/types.ts";
import { countsOf } from "../../trajectories/batch.ts";
import type { NativeLoss } from "../channel/native-loss.ts";

/** verl adds a plain sum over tokens; `settings` are keys of `actor_rollout_ref.actor`. */
export function nativeLoss(loss: Loss, offsets: Int32Array): NativeLoss | undefined {
  const hosted = loss.hosted?.();
  if (hosted?.verl === undefined) return undefined;
  const { averages, ...found } = hosted.verl;
  const { weights, logprobs, advantages = weights } = hosted.inputs;
  if (advantages === undefined) return undefined;
  const inputs = {
    advantages: averages ? timesCounts(advantages, offsets) : advantages,
    ...(logprobs ? { old_logprobs: logprobs } : {}),
  };
  return { ...found, inputs };
}

function timesCounts(values: Float32Array, offsets: Int32Array): Float32Array {
  const counts = Array.from(countsOf(offsets)).flatMap((count) => Array<number>(count).fill(count));
  return values.map((value, token) => value * counts[token]!);
}
