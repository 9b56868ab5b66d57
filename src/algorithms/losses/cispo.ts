/** CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that no token loses its gradient. */
import { exp } from "./exp.ts";
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** `-sg(clip(r, low, high)) A lp` */
export const cispo: SequenceLoss = (row, { low, high, logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  let clipped = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    let ratio = exp(held);
    sum += held;
    if (ratio < low || ratio > high) {
      ratio = ratio < low ? low : high;
      if (advantage !== 0) clipped++;
    }
    const slope = -w * ratio * advantage;
    total += slope * logprobs[at + token]!;
    slopes[at + token] = slope;
  }
  row.kl = -sum;
  row.clipped = clipped;
  return total;
};
