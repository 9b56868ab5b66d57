/** Rewards of tokens carried back to the tokens before them. One row at a time; the last entry is the latest token. */

export interface GaeOptions {
  /** Discount of a token. */
  gamma: number;
  /** Weight of what lies further ahead; 1: the whole return, 0: one token and the critic. */
  lambda: number;
}

/**
 * `G_t = r_t + gamma G_{t+1}`, float64.
 *
 * @param rewards `[T]`
 */
export function returnsToGo(rewards: ArrayLike<number>, gamma: number): Float64Array {
  const returns = new Float64Array(rewards.length);
  let ahead = 0;
  for (let token = rewards.length - 1; token >= 0; token--) {
    ahead = rewards[token]! + gamma * ahead;
    returns[token] = ahead;
  }
  return returns;
}

/**
 * Generalised advantages (arXiv 1506.02438): `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lambda A_{t+1}`.
 *
 * @param rewards `[T]`
 * @param values `[T]` what the critic expected at each token
 * @param mask `[T]` 1 where the policy spoke: other tokens are passed over, as if they were not there, and show what
 *   stands behind them. Absent: all count.
 * @returns `[T]` advantages, and returns `A + V`, which the critic learns
 */
export function generalisedAdvantages(
  rewards: ArrayLike<number>,
  values: ArrayLike<number>,
  { gamma, lambda }: GaeOptions,
  mask?: ArrayLike<number>,
): { advantages: Float64Array; returns: Float64Array } {
  const advantages = new Float64Array(rewards.length);
  const returns = new Float64Array(rewards.length);
  let nextValue = 0;
  let ahead = 0;
  for (let token = rewards.length - 1; token >= 0; token--) {
    if (mask === undefined || mask[token] !== 0) {
      ahead = rewards[token]! + gamma * nextValue - values[token]! + gamma * lambda * ahead;
      nextValue = values[token]!;
    }
    advantages[token] = ahead;
    returns[token] = ahead + values[token]!;
  }
  return { advantages, returns };
}
