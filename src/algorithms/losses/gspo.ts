/** GSPO (arXiv 2507.18071): PPO's clip on the geometric mean of a sequence's ratios. */
import { clamp, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** verl's value: the mean log-ratio is bounded by it, with zero gradient beyond. */
const maxMeanLogRatio = 10;

/**
 * `max(-sA, -clip(s, low, high)A)` with `s = exp(mean of the sequence's log-ratios)`. The gradient is GSPO-token's: each
 * token moves `s` as if by itself; or the one through the mean. They are equal if a sequence has a single advantage.
 */
export const gspo: SequenceLoss = ({ logprobs, old, advantages }, { low, high, gspoGradient }) => {
  const values = emptyValues(logprobs.length);
  let sum = 0;
  for (let t = 0; t < logprobs.length; t++) sum += logprobs[t]! - old[t]!;
  const mean = sum / logprobs.length;
  const ratio = Math.exp(Math.min(mean, maxMeanLogRatio));
  const bounded = clamp(ratio, low, high);
  advantages.forEach((advantage, t) => {
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
