/** GMPO (arXiv 2507.20673): a sequence's loss is its mean advantage by the geometric mean of its clipped ratios. */
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** As verl, in whose form a sequence without tokens needs no special case. */
const countEps = 1e-8;

/**
 * `-mean(A) exp(mean of x)`, `x` the log-ratio clipped to `[low - 1, high - 1]` on the side that A's sign makes
 * pessimistic. Every token carries the sequence's loss, and its
 * weight is that of the first, see `geometricMeans`. `clipped` counts clips of positive, `capped` of negative A.
 */
export const gmpo: SequenceLoss = (row, { low, high, logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weightsAt, weight, slopes } = row;
  let sum = 0;
  let logRatios = 0;
  let advantageSum = 0;
  let clipped = 0;
  let capped = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const bounded = logRatio < low - 1 ? low - 1 : logRatio > high - 1 ? high - 1 : logRatio;
    const pessimistic = advantage > 0 ? bounded < logRatio : bounded > logRatio;
    if (bounded !== logRatio && advantage > 0) clipped++;
    if (bounded !== logRatio && advantage < 0) capped++;
    if (advantage !== 0) sum += pessimistic ? bounded : logRatio;
    logRatios += logRatio;
    advantageSum += advantage;
    slopes[at + token] = advantage !== 0 && !pessimistic ? 1 : 0;
  }
  const mean = sum / (count + countEps);
  const w = weights === null ? weight : weight * weights[weightsAt]!;
  const loss = ((-w * advantageSum) / (count + countEps)) * Math.exp(clamp(mean, -logRatioLimit, logRatioLimit));
  const slope = Math.abs(mean) <= logRatioLimit ? loss * (count / (count + countEps)) : 0;
  for (let token = at; token < at + count; token++) slopes[token] = slopes[token]! * slope;
  row.kl = -logRatios;
  row.clipped = clipped;
  row.capped = capped;
  return loss * count;
};

/** Weights of tokens as gmpo takes them: the geometric mean of each sequence's, on all its tokens. */
export function geometricMeans(weights: Float32Array, offsets: Int32Array): Float32Array {
  const means = weights.slice();
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    const [from, to] = [offsets[sequence]!, offsets[sequence + 1]!];
    let sum = 0;
    // A weight of 0 must not erase the sequence's other tokens through its logarithm.
    for (let token = from; token < to; token++) sum += Math.log(weights[token]! + 1e-10);
    means.fill(Math.exp(sum / (to - from + countEps)), from, to);
  }
  return means;
}
