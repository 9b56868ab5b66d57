/** PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729). */
import { exp } from "./exp.ts";
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-dual * A`. The gradient is that of the branch selected. */
export const ppo: SequenceLoss = (row, { low, high, dual, logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  let clipped = 0;
  let capped = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const ratio = exp(held);
    sum += held;
    let loss = -ratio * advantage;
    let slope = held === logRatio ? loss : 0;
    // Where the clipped branch is the larger one: one comparison, because comparisons of random figures are what costs.
    if (advantage > 0 ? ratio > high : advantage < 0 && ratio < low) {
      loss = -(advantage > 0 ? high : low) * advantage;
      slope = 0;
      clipped++;
    }
    if (advantage < 0 && loss > -dual * advantage) {
      loss = -dual * advantage;
      slope = 0;
      capped++;
    }
    total += w * loss;
    slopes[at + token] = w * slope;
  }
  row.kl = -sum;
  row.clipped = clipped;
  row.capped = capped;
  return total;
};
