/** GSPO (arXiv 2507.18071): PPO's clip on the geometric mean of a sequence's ratios. */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** verl's value: the mean log-ratio is bounded by it, with zero gradient beyond. */
const maxMeanLogRatio = 10;

/**
 * `max(-sA, -clip(s, low, high)A)` with `s = exp(mean of the sequence's log-ratios)`. The gradient is that of GSPO-token,
 * where each token moves `s` on its own, or goes through the mean. They are equal if a sequence has a single advantage.
 */
export const gspo: SequenceLoss = (tokens, { low, high, gspoGradient }) => {
  const values = emptyValues(tokens);
  let sum = 0;
  eachToken(tokens, (_, logprob, old) => {
    sum += logprob - old;
  });
  const mean = sum / tokens.logprobs.length;
  const ratio = Math.exp(Math.min(mean, maxMeanLogRatio));
  const bounded = clamp(ratio, low, high);
  tokens.advantages.forEach((advantage, t) => {
    const clips = -bounded * advantage > -ratio * advantage;
    const loss = -(clips ? bounded : ratio) * advantage;
    values.losses[t] = loss;
    values.slopes[t] = clips || mean > maxMeanLogRatio ? 0 : loss;
    if (clips) values.clipped++;
  });
  values.kl = -sum;
  if (gspoGradient === "sequence") values.slopesOfMean = true;
  return values;
};
