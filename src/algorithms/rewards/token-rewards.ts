/** The reward of a reply, laid on its tokens. */

/**
 * The reward on the last token, and on every token what its distance to the reference policy costs.
 *
 * @param kl `[T]` estimate of the KL at each sampled token; absent: nothing to pay
 * @param coefficient price of a unit of KL; below 0 counts as 0
 * @returns `[T]`, nothing for a reply without tokens
 */
export function tokenRewards(tokens: number, reward: number, kl?: ArrayLike<number>, coefficient = 0): Float64Array {
  const rewards = new Float64Array(tokens);
  const price = Math.max(coefficient, 0);
  if (kl !== undefined && price > 0) for (let token = 0; token < tokens; token++) rewards[token] = -price * kl[token]!;
  if (tokens > 0) rewards[tokens - 1]! += reward;
  return rewards;
}
