/** GSPO (arXiv 2507.18071): PPO's clip on the geometric mean of a sequence's ratios. */
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** As verl: the mean log-ratio is held below this, without gradient beyond. */
const maxMeanLogRatio = 10;

/**
 * `max(-sA, -clip(s, low, high)A)` with `s = exp(mean of the row's log-ratios)`. The gradient of GSPO-token: each token
 * moves `s` as if by itself; or that through the mean. They are equal where a sequence has one advantage.
 */
export const gspo: SequenceLoss = (row, { low, high, gspoGradient }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weightsAt, weight, slopes } = row;
  let sum = 0;
  for (let token = 0; token < count; token++) sum += logprobs[at + token]! - old[oldAt + token]!;
  const mean = sum / count;
  const ratio = Math.exp(Math.min(mean, maxMeanLogRatio));
  const bounded = clamp(ratio, low, high);
  let total = 0;
  let clipped = 0;
  let slopeSum = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const w = weights === null ? weight : weight * weights[weightsAt + token]!;
    let loss = -w * ratio * advantage;
    let slope = mean > maxMeanLogRatio ? 0 : loss;
    if (-w * bounded * advantage > loss) {
      loss = -w * bounded * advantage;
      slope = 0;
      clipped++;
    }
    total += loss;
    slopeSum += slope;
    slopes[at + token] = slope;
  }
  if (gspoGradient === "sequence") slopes.fill(slopeSum / count, at, at + count);
  row.kl = -sum;
  row.clipped = clipped;
  return total;
};
