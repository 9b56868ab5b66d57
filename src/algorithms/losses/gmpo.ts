/** GMPO (arXiv 2507.20673): a sequence's loss is its mean advantage times the geometric mean of its clipped ratios. */
import { clamp, defineLoss, eachToken, emptyValues } from "./definition.ts";

/** verl's value; with it a sequence without tokens needs no special case. */
const countEps = 1e-8;

/**
 * `-mean(A) exp(mean of x)`, `x` the log-ratio clipped to `[low - 1, high - 1]` on the side that the sign of A makes
 * pessimistic. Every token carries the sequence's loss; its weight must be the same on all of them (`weightsOf`).
 * `clipped` counts clips of positive, `capped` of negative advantages.
 */
export const gmpo = defineLoss({
  aliases: ["geo_mean"],
  formula: "`-mean(A) exp(mean of clipped lp - old)`; the clip is in log space",
  source: "2507.20673",
  ratio: "clipped",
  constants: {},
  evaluate(tokens, { low, high, logRatioLimit }) {
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
  },
  aggMode: "seq-mean-token-mean",
  /** All tokens of a sequence get the geometric mean of its weights. */
  weightsOf(weights) {
    // A weight of 0 must not erase the sequence's other tokens through its logarithm.
    const sum = weights.reduce((total, weight) => total + Math.log(weight + 1e-10), 0);
    return weights.slice().fill(Math.exp(sum / (weights.length + countEps)));
  },
  caps: () => true,
});
