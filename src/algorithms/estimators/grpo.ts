/** Group-relative advantages (DeepSeekMath, arXiv 2402.03300; without the deviation: Dr. GRPO, arXiv 2503.20783). */
import { allEqual, mean, standardDeviation } from "../../statistics.ts";
import type { Estimator, EstimatorOptions } from "./estimator.ts";

/** `(R - mean) / (std + eps)` within each group, or `R - mean`. */
export const grpo: Estimator = (rewards, options) => rewards.map((group) => compareWithinGroup(group, options));

function compareWithinGroup(rewards: readonly number[], options: EstimatorOptions): number[] {
  const scale = (deviation: number) => (options.std ? 1 / (deviation + options.eps) : 1);
  if (rewards.length === 1 && options.singleton === "reward") return [rewards[0]! * scale(1)];
  // Rounding in the mean must not leave equal rewards a trace of an advantage: exact zeros are left out of training.
  if (allEqual(rewards)) return rewards.map(() => 0);
  const center = mean(rewards);
  const factor = scale(standardDeviation(rewards, options.ddof));
  return rewards.map((reward) => (reward - center) * factor);
}
