/** Rewards of the tokens of a reply. */

/**
 * The reward is paid at the last token; every token pays for its KL to the reference policy.
 *
 * @param kl `[T]` estimate of the KL at each sampled token
 * @param coefficient cost of one nat of KL; negative values count as 0
 * @returns `[T]`
 */
export function tokenRewards(tokens: number, reward: number, kl?: ArrayLike<number>, coefficient = 0): Float64Array {
  const price = Math.max(coefficient, 0);
  return Float64Array.from({ length: tokens }, (_, token) => {
    const paid = token === tokens - 1 ? reward : 0;
    return paid - price * (kl?.[token] ?? 0);
  });
}
