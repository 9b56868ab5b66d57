/** CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that every token keeps its gradient. */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-sg(clip(r, low, high)) A lp` */
export const cispo: SequenceLoss = (tokens, { low, high, logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const held = clamp(logprob - old, -logRatioLimit, logRatioLimit);
    const ratio = Math.exp(held);
    const slope = -clamp(ratio, low, high) * advantage;
    values.losses[t] = slope * logprob;
    values.slopes[t] = slope;
    values.kl -= held;
    if (advantage !== 0 && (ratio < low || ratio > high)) values.clipped++;
  });
  return values;
};
