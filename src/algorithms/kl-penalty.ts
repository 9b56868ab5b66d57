/** The KL to a reference policy taken from the reward instead of added to the loss. */
import { returnsToGo } from "./estimators/returns.ts";
import { eachSequence, smoothedMean } from "./importance-weights.ts";
import { type KlEstimatorName, klEstimators } from "./kl.ts";

/**
 * `weight * KL` of each token, to be taken from its reward.
 *
 * @param logprobs `[N]` of the policy that sampled, or of the trainer's at that time
 * @param reference `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` penalties, and the mean over sequences of their mean KL, which steers an adaptive weight
 */
export function klPenalty(
  logprobs: Float32Array,
  reference: Float32Array,
  offsets: Int32Array,
  { weight, estimator }: { weight: number; estimator: KlEstimatorName },
): { penalties: Float32Array; kl: number } {
  const estimate = klEstimators[estimator];
  const penalties = logprobs.map((logprob, token) => estimate(logprob - reference[token]!).value);
  let kl = 0;
  eachSequence(offsets, (_, from, to) => {
    kl += smoothedMean(penalties.subarray(from, to));
  });
  for (let token = 0; token < penalties.length; token++) penalties[token]! *= weight;
  return { penalties, kl: offsets.length > 1 ? kl / (offsets.length - 1) : 0 };
}

/**
 * Advantages less what each token's own KL, and with `gamma` above 0 the later tokens' of its sequence, cost.
 *
 * @param advantages `[N]`
 * @param penalties `[N]` from `klPenalty`
 */
export function penalizeAdvantages(
  advantages: Float32Array,
  penalties: Float32Array,
  offsets: Int32Array,
  { gamma }: { gamma: number },
): Float32Array {
  const penalized = advantages.slice();
  eachSequence(offsets, (_, from, to) => {
    returnsToGo(penalties.subarray(from, to), gamma).forEach((cost, token) => {
      penalized[from + token]! -= cost;
    });
  });
  return penalized;
}
