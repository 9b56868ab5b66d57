/** GMPO (arXiv 2507.20673): a sequence's loss is its mean advantage times the geometric mean of its clipped ratios. */
import { rowsOf } from "../../trajectories/batch.ts";
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** verl's value; with it a sequence without tokens needs no special case. */
const countEps = 1e-8;

/**
 * `-mean(A) exp(mean of x)`, `x` the log-ratio clipped to `[low - 1, high - 1]` on the side that the sign of A makes
 * pessimistic. Every token carries the sequence's loss; its weight must be the same on all of them (`geometricMeans`).
 * `clipped` counts clips of positive, `capped` of negative advantages.
 */
export const gmpo: SequenceLoss = (tokens, { low, high, logRatioLimit }) => {
  const values = emptyValues(tokens);
  let sum = 0;
  let advantageSum = 0;
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const bounded = clamp(logRatio, low - 1, high - 1);
    const pessimistic = advantage > 0 ? bounded < logRatio : bounded > logRatio;
    if (bounded !== logRatio && advantage > 0) values.clipped++;
    if (bounded !== logRatio && advantage < 0) values.capped++;
    if (advantage !== 0) sum += pessimistic ? bounded : logRatio;
    values.slopes[t] = advantage !== 0 && !pessimistic ? 1 : 0;
    values.kl -= logRatio;
    advantageSum += advantage;
  });
  const count = tokens.logprobs.length;
  const mean = sum / (count + countEps);
  const loss = (-advantageSum / (count + countEps)) * Math.exp(clamp(mean, -logRatioLimit, logRatioLimit));
  const slope = Math.abs(mean) <= logRatioLimit ? loss * (count / (count + countEps)) : 0;
  values.losses.fill(loss);
  for (let t = 0; t < count; t++) values.slopes[t]! *= slope;
  return values;
};

/** Each sequence's weights replaced by their geometric mean, as gmpo needs them. */
export function geometricMeans(weights: Float32Array, offsets: Int32Array): Float32Array {
  const means = weights.slice();
  for (const row of rowsOf(means, offsets)) {
    // A weight of 0 must not erase the sequence's other tokens through its logarithm.
    const sum = row.reduce((total, weight) => total + Math.log(weight + 1e-10), 0);
    row.fill(Math.exp(sum / (row.length + countEps)));
  }
  return means;
}
