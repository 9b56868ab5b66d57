/** Rewards, returns and generalized advantages of the tokens of one sequence. */

export interface GaeOptions {
  /** Discount per token. */
  gamma: number;
  /** 1 uses the whole return, 0 one token's reward and the critic. */
  lambda: number;
}

/**
 * The reward is at the last token; the KL to the reference policy is subtracted at every token.
 *
 * @param kl `[T]` estimate of the KL at each sampled token
 * @param coefficient weight of the KL; negative values count as 0
 * @returns `[T]`
 */
export function tokenRewards(tokens: number, reward: number, kl?: ArrayLike<number>, coefficient = 0): Float64Array {
  const weight = Math.max(coefficient, 0);
  return Float64Array.from({ length: tokens }, (_, token) => {
    const given = token === tokens - 1 ? reward : 0;
    return given - weight * (kl?.[token] ?? 0);
  });
}

/**
 * `G_t = r_t + gamma G_{t+1}`, float64.
 *
 * @param rewards `[T]`
 * @returns `[T]`
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
 * Generalized advantages (arXiv 1506.02438): `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lambda A_{t+1}`.
 *
 * @param rewards `[T]`
 * @param values `[T]` the critic's value at each token
 * @returns `[T]` advantages, and returns `A + V`, which the critic learns
 */
export function generalizedAdvantages(
  rewards: ArrayLike<number>,
  values: ArrayLike<number>,
  { gamma, lambda }: GaeOptions,
): { advantages: Float64Array; returns: Float64Array } {
  const advantages = new Float64Array(rewards.length);
  const returns = new Float64Array(rewards.length);
  let nextValue = 0;
  let ahead = 0;
  for (let token = rewards.length - 1; token >= 0; token--) {
    ahead = rewards[token]! + gamma * nextValue - values[token]! + gamma * lambda * ahead;
    nextValue = values[token]!;
    advantages[token] = ahead;
    returns[token] = ahead + values[token]!;
  }
  return { advantages, returns };
}
