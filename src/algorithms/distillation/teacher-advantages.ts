/** The difference between student and teacher on the sampled tokens, as an advantage: on-policy distillation by policy gradient. */
import { type KlEstimatorName, klEstimators } from "../kl/kl-estimators.ts";

export interface TeacherAdvantageOptions {
  /** `k1`: the log-ratio, whose expectation is the reverse KL. */
  estimator: KlEstimatorName;
  coefficient: number;
  /** How much of the following tokens' difference a token gets; 0: none. */
  discount: number;
  /** Bounds of the discounted sum, before the coefficient. */
  bounds?: { low: number; high: number } | undefined;
}

/**
 * `coefficient * sum over this and later tokens of discount^i * (-KL)`, where `i` is the distance in the sequence. A token
 * whose teacher is unknown (NaN) has a KL of 0, and so have tokens that the policy did not sample, such as results of tools;
 * these count in the distance, as in the Tinker cookbook.
 *
 * @param student `[N]` log-probabilities of the policy that sampled
 * @param teacher `[N]`
 * @param positions `[N]` of each token in its sequence, in ascending order within a sequence
 * @param offsets `[S + 1]`
 * @returns `[N]` to add to the advantages
 */
export function teacherAdvantages(
  student: Float32Array,
  teacher: Float32Array,
  positions: ArrayLike<number>,
  offsets: Int32Array,
  { estimator, coefficient, discount, bounds }: TeacherAdvantageOptions,
): Float32Array {
  const estimate = klEstimators[estimator];
  const gains = student.map((logprob, token) => {
    const { value } = estimate(logprob - teacher[token]!);
    return Number.isNaN(value) ? 0 : -value;
  });
  const { low, high } = bounds ?? { low: Number.NEGATIVE_INFINITY, high: Number.POSITIVE_INFINITY };
  const sums = Float64Array.from(gains);
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    for (let token = offsets[sequence + 1]! - 2; token >= offsets[sequence]!; token--) {
      sums[token]! += discount ** (positions[token + 1]! - positions[token]!) * sums[token + 1]!;
    }
  }
  return gains.map((_, token) => coefficient * Math.min(Math.max(sums[token]!, low), high));
}

/** The mean over tokens of the log-ratio of student and teacher: an estimate of KL(student || teacher). NaN without tokens. */
export function teacherKl(student: ArrayLike<number>, teacher: ArrayLike<number>): number {
  let sum = 0;
  let count = 0;
  for (let token = 0; token < student.length; token++) {
    const difference = student[token]! - teacher[token]!;
    if (Number.isNaN(difference)) continue;
    sum += difference;
    count++;
  }
  return sum / count;
}
