/** The KL to a reference policy, subtracted from the reward instead of added to the loss. */
import { mean } from "../../statistics.ts";
import { rowsOf } from "../../trajectories/batch.ts";
import { returnsToGo } from "../estimators/returns.ts";
import { sequenceMeans } from "../off-policy/describe.ts";
import { type KlTerm, klEstimators } from "./kl-estimators.ts";

/**
 * `weight * KL` of each token, for subtraction from its reward.
 *
 * @param logprobs `[N]` of the policy that sampled, or of the trainer at that time
 * @param reference `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` penalties, and the mean over sequences of their mean KL, for the controller of an adaptive weight
 */
export function klPenalty(
  logprobs: Float32Array,
  reference: Float32Array,
  offsets: Int32Array,
  { weight, estimator }: KlTerm,
): { penalties: Float32Array; kl: number } {
  const estimate = klEstimators[estimator];
  const kls = logprobs.map((logprob, token) => estimate(logprob - reference[token]!).value);
  const means = sequenceMeans(kls, offsets);
  return { penalties: kls.map((kl) => kl * weight), kl: means.length > 0 ? mean(means) : 0 };
}

/**
 * Subtracts from each advantage the token's penalty and, if `gamma` is above 0, the discounted penalties of the later
 * tokens of its sequence.
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
  const costs = rowsOf(penalties, offsets).flatMap((row) => Array.from(returnsToGo(row, gamma)));
  return advantages.map((advantage, token) => advantage - costs[token]!);
}
