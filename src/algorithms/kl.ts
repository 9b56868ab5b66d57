/** KL to the reference policy: estimators, the penalty on rewards, and its weight over the steps of a run. */
import { mean } from "../base/values.ts";
import { rowsOf } from "../trajectories/batch.ts";
import { returnsToGo } from "./estimators.ts";
import { sequenceMeans } from "./off-policy.ts";

// The weight of a KL to the reference policy over the steps of a run: fixed, or adapted to a target KL (arXiv
// 1909.08593).

/** The KL of a run; `weight` is the first one. */
export interface KlOptions extends KlTerm {
  in: "loss" | "reward";
  /** Target KL (nats); `null` keeps the weight fixed. */
  target: number | null;
  /** Rollouts over which a KL far from the target changes the weight by a factor of about 1.2. */
  horizon: number;
}

/** Bound on the relative error of one step. */
const maxError = 0.2;

/**
 * The weight for the next step. It is the controller's whole state, so checkpoints save it.
 *
 * @param kl mean KL to the reference of this step (nats)
 * @param rollouts number of sequences of this step
 */
export function nextKlWeight(
  weight: number,
  kl: number,
  rollouts: number,
  { target, horizon }: Pick<KlOptions, "target" | "horizon">,
): number {
  if (target === null) return weight;
  const error = Math.min(Math.max(kl / target - 1, -maxError), maxError);
  return weight * (1 + (error * rollouts) / horizon);
}

// Estimators of the KL to a reference policy, from one sampled token (http://joschu.net/blog/kl-approx.html).

export interface KlValue {
  value: number;
  /** Derivative with respect to the current log-probability. */
  slope: number;
}

/** verl's bounds of the argument and the value of k3. */
const maxLogRatio = 20;
const maxK3 = 10;

/** `logRatio` is `lp - reference`. */
export const klEstimators = {
  /** Unbiased, but as a loss term its expected gradient is zero. */
  k1: (logRatio) => ({ value: logRatio, slope: 1 }),
  k2: (logRatio) => ({ value: logRatio ** 2 / 2, slope: logRatio }),
  k3: (logRatio) => {
    const opposite = Math.min(Math.max(-logRatio, -maxLogRatio), maxLogRatio);
    const growth = Math.expm1(opposite);
    const value = growth - opposite;
    const bounded = Math.abs(logRatio) > maxLogRatio || value > maxK3;
    return { value: Math.min(value, maxK3), slope: bounded ? 0 : -growth };
  },
  abs: (logRatio) => ({ value: Math.abs(logRatio), slope: Math.sign(logRatio) }),
} as const satisfies Record<string, (logRatio: number) => KlValue>;

export type KlEstimatorName = keyof typeof klEstimators;

/** A KL to the reference policy, in the loss or in the rewards. */
export interface KlTerm {
  weight: number;
  estimator: KlEstimatorName;
}

// The KL to a reference policy, subtracted from the reward instead of added to the loss.

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
