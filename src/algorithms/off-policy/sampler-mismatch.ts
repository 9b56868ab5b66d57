/** Distance between the log-probabilities of sampler and trainer for the same tokens under the same weights. */
import { logRatios } from "./describe.ts";

/** Largest exponent, so that metrics stay finite. */
const maxLogRatio = 20;

/**
 * Over tokens, with `d = trainer - sampler`:
 * `rollout/logprob_diff_mean` and `_max` of |d|; `rollout/kl_sampler_trainer_k1` = mean of -d, `_k2` = mean of d^2 / 2
 * and `_k3` = mean of e^d - 1 - d, which estimate KL(sampler || trainer); `rollout/effective_sample_size` =
 * (sum w)^2 / (N sum w^2) with w = e^d, which is 1 if they agree. Pass log-probabilities from before the first update;
 * later ones also measure the update.
 *
 * @param trainer `[N]`
 * @param sampler `[N]`, of the same tokens
 * @returns an empty record if there are no tokens
 */
export function samplerMismatch(trainer: Float32Array, sampler: Float32Array): Record<string, number> {
  const tokens = trainer.length;
  if (tokens === 0) return {};
  let absolute = 0;
  let largest = 0;
  let opposite = 0;
  let half = 0;
  let k3 = 0;
  let weights = 0;
  let squares = 0;
  for (const difference of logRatios(trainer, sampler)) {
    const bounded = Math.min(difference, maxLogRatio);
    const weight = Math.exp(bounded);
    absolute += Math.abs(difference);
    largest = Math.max(largest, Math.abs(difference));
    opposite -= difference;
    half += difference ** 2 / 2;
    k3 += Math.expm1(bounded) - bounded;
    weights += weight;
    squares += weight ** 2;
  }
  return {
    "rollout/logprob_diff_mean": absolute / tokens,
    "rollout/logprob_diff_max": largest,
    "rollout/kl_sampler_trainer_k1": opposite / tokens,
    "rollout/kl_sampler_trainer_k2": half / tokens,
    "rollout/kl_sampler_trainer_k3": k3 / tokens,
    "rollout/effective_sample_size": squares === 0 ? 0 : weights ** 2 / (tokens * squares),
  };
}
