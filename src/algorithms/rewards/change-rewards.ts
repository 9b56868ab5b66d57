/** What changes rewards before they are trained on: a penalty of long replies, bounds, and running normalization. */

/** DAPO's soft penalty of replies near the length limit (arXiv 2503.14476). */
export interface OverlongPenalty {
  /** Length limit, in tokens. */
  maxLength: number;
  /** Number of tokens before the limit that are penalized. */
  buffer: number;
  /** Penalty at the limit. */
  factor: number;
}

/** Added to the reward of a reply of `length` tokens: 0 before the buffer, then linear to `-factor` at the limit. */
export function overlongPenalty(length: number, { maxLength, buffer, factor }: OverlongPenalty): number {
  if (buffer <= 0) return 0;
  return Math.min(0, ((maxLength - buffer - length) / buffer) * factor);
}

/** Clips values to `[-bound, bound]` and returns the share that was outside. A bound of 0 or less is ignored. */
export function clipSymmetric<Values extends number[] | Float32Array | Float64Array>(
  values: Values,
  bound: number,
): { values: Values; fraction: number } {
  if (bound <= 0 || values.length === 0) return { values, fraction: 0 };
  let outside = 0;
  const clipped = values.map((value) => {
    if (Math.abs(value) > bound) outside++;
    return Math.min(Math.max(value, -bound), bound);
  }) as Values;
  return { values: clipped, fraction: outside / values.length };
}

/** Mean and deviation of all rewards so far, in a form that checkpoints can save. */
export interface RunningMoments {
  count: number;
  mean: number;
  /** Sum of squared distances to the mean. */
  squares: number;
}

export const noMoments: RunningMoments = { count: 0, mean: 0, squares: 0 };

/** Adds rewards to the moments (parallel algorithm of Chan, Golub and LeVeque). */
export function withRewards(moments: RunningMoments, rewards: readonly number[]): RunningMoments {
  const count = moments.count + rewards.length;
  if (rewards.length === 0) return moments;
  const batchMean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const batchSquares = rewards.reduce((sum, reward) => sum + (reward - batchMean) ** 2, 0);
  const shift = batchMean - moments.mean;
  return {
    count,
    mean: moments.mean + (shift * rewards.length) / count,
    squares: moments.squares + batchSquares + (shift ** 2 * moments.count * rewards.length) / count,
  };
}

/** The sample deviation; 1 for fewer than two rewards or equal rewards. */
export function runningDeviation({ count, squares }: RunningMoments): number {
  return count > 1 && squares > 0 ? Math.sqrt(squares / (count - 1)) : 1;
}

/**
 * Adds the rewards to the running moments, then divides them by the running deviation; `center` subtracts the running
 * mean first.
 *
 * @example
 * const { rewards, moments } = normalizeRewards(progress.rewardMoments, [1, 0], { center: true });
 */
export function normalizeRewards(
  before: RunningMoments,
  rewards: readonly number[],
  { center }: { center: boolean },
): { rewards: number[]; moments: RunningMoments } {
  const moments = withRewards(before, rewards);
  const deviation = runningDeviation(moments);
  const origin = center ? moments.mean : 0;
  return { rewards: rewards.map((reward) => (reward - origin) / deviation), moments };
}
