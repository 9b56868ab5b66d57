/** Returns less, at each token, the baseline that leaves the estimate of the gradient the least variance. */

/** One reply of a group; all arrays are `[T]` over its sampled tokens, and may differ in length within the group. */
export interface BaselineRow {
  /** Return from each token on. */
  returns: ArrayLike<number>;
  /** Log-probability of each token. */
  logprobs: ArrayLike<number>;
  /** Sum of the squared probabilities of all tokens at that place. */
  sumPiSquared: ArrayLike<number>;
}

/**
 * `W_t = sum over j <= t of 1 - 2 p_j + sum p^2`, a proxy of the squared norm of the gradient up to t; the baseline at t
 * is the mean of the group's returns weighted by it. A group of one keeps its returns.
 *
 * @returns `[members][T]` advantages
 */
export function optimalTokenBaseline(group: readonly BaselineRow[]): Float64Array[] {
  if (group.length === 1) return group.map(({ returns }) => Float64Array.from(returns));
  const weights = group.map(({ logprobs, sumPiSquared }) => {
    let total = 0;
    return Float64Array.from(logprobs, (logprob, token) => {
      total += 1 - 2 * Math.exp(logprob) + sumPiSquared[token]!;
      return total;
    });
  });
  const longest = Math.max(0, ...group.map(({ returns }) => returns.length));
  const baselines = Float64Array.from({ length: longest }, (_, token) => {
    let weighted = 0;
    let total = 0;
    group.forEach(({ returns }, member) => {
      if (token >= returns.length) return;
      weighted += returns[token]! * weights[member]![token]!;
      total += weights[member]![token]!;
    });
    return weighted / (total + 1e-8);
  });
  return group.map(({ returns }) => Float64Array.from(returns, (value, token) => value - baselines[token]!));
}
