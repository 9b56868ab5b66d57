/** Mean and deviation of all rewards so far, as data that a checkpoint can hold. */

export interface RunningMoments {
  count: number;
  mean: number;
  /** Sum of squared distances to the mean. */
  squares: number;
}

export const noMoments: RunningMoments = { count: 0, mean: 0, squares: 0 };

/** The moments with some more rewards (the parallel form of Chan, Golub and LeVeque). */
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

/** The sample deviation; 1 where there is none to speak of: of a single reward, or of rewards that are all equal. */
export function runningDeviation({ count, squares }: RunningMoments): number {
  return count > 1 && squares > 0 ? Math.sqrt(squares / (count - 1)) : 1;
}

/**
 * Rewards over the running deviation, which they are first counted into; with `center` less the running mean.
 *
 * @example
 * const { rewards, moments } = normaliseRewards(progress.rewardMoments, [1, 0], { center: true });
 */
export function normaliseRewards(
  before: RunningMoments,
  rewards: readonly number[],
  { center }: { center: boolean },
): { rewards: number[]; moments: RunningMoments } {
  const moments = withRewards(before, rewards);
  const deviation = runningDeviation(moments);
  const origin = center ? moments.mean : 0;
  return { rewards: rewards.map((reward) => (reward - origin) / deviation), moments };
}
