/** The loss of single tokens against a teacher, with its bounds; without weights. */

import {
  type Compared,
  type DivergenceDefinition,
  type DivergenceName,
  type DivergenceOptions,
  type DivergenceValue,
  divergences,
} from "../divergences/divergences.ts";
import { type KlEstimatorName, klEstimators } from "../kl/kl-estimators.ts";

interface Bounds {
  /** Losses are clamped to +-this, with zero gradient outside; null: no bound. */
  maxLoss: number | null;
}

/** An estimate of the KL from the sampled token alone. Its gradient is not that of the estimated KL; see the guide. */
export interface EstimatorLoss extends Bounds {
  kind: "estimator";
  estimator: KlEstimatorName;
}

/** A divergence over several tokens of each position. */
export interface TokensLoss extends Bounds, DivergenceOptions {
  kind: "tokens";
  divergence: DivergenceName;
  /** Number of the teacher's most likely tokens. */
  count: number;
  /** Log-probabilities are clamped from below; null: they are not. */
  leastLogprob: number | null;
}

/** Zero for a token whose teacher is unknown (NaN). */
export function estimatorLoss(logprob: number, teacher: number, { estimator, maxLoss }: EstimatorLoss) {
  const { value, slope } = klEstimators[estimator](logprob - teacher);
  return Number.isNaN(value)
    ? { value: 0, slope: 0 }
    : { value: bounded(value, maxLoss), slope: passes(value, maxLoss) * slope };
}

export function tokensLoss({ student, teacher }: Compared, options: TokensLoss): DivergenceValue {
  const { divergence, leastLogprob, maxLoss } = options;
  const least = leastLogprob ?? Number.NEGATIVE_INFINITY;
  const raise = (logprobs: Compared["student"]) => Float64Array.from(logprobs, (logprob) => Math.max(logprob, least));
  const compared = { student: raise(student), teacher: raise(teacher) };
  const { evaluate }: DivergenceDefinition = divergences[divergence];
  const { value, slopes } = evaluate(compared, options);
  const factor = passes(value, maxLoss);
  return {
    value: bounded(value, maxLoss),
    slopes: slopes.map((slope, k) => (student[k]! < least ? 0 : factor * slope)),
  };
}

const bounded = (value: number, max: number | null) => (max === null ? value : Math.min(Math.max(value, -max), max));
const passes = (value: number, max: number | null) => Number(max === null || Math.abs(value) <= max);
