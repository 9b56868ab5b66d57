/** CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that every token keeps its gradient. */
import { clamp, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-sg(clip(r, low, high)) A lp` */
export const cispo: SequenceLoss = ({ logprobs, old, advantages }, { low, high, logRatioLimit }) => {
  const values = emptyValues(logprobs.length);
  for (let t = 0; t < logprobs.length; t++) {
    const advantage = advantages[t]!;
    const held = clamp(logprobs[t]! - old[t]!, -logRatioLimit, logRatioLimit);
    const ratio = Math.exp(held);
    const slope = -clamp(ratio, low, high) * advantage;
    values.losses[t] = slope * logprobs[t]!;
    values.slopes[t] = slope;
    values.kl -= held;
    if (advantage !== 0 && (ratio < low || ratio > high)) values.clipped++;
  }
  return values;
};
