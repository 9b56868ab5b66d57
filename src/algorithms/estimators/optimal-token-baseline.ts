/** Subtracts from each token's return the baseline that minimizes the variance of the gradient estimate. */

/** One reply of a group; all arrays are `[T]` over its sampled tokens, and may differ in length within the group. */
export interface BaselineRow {
  /** Return from each token on. */
  returns: readonly number[] | Float32Array | Float64Array;
  /** Log-probability of each token. */
  logprobs: readonly number[] | Float32Array | Float64Array;
  /** Sum of the squared probabilities of all tokens of the vocabulary at that position. */
  sumPiSquared: readonly number[] | Float32Array | Float64Array;
}

/**
 * `W_t = sum over j <= t of 1 - 2 p_j + sum p^2` approximates the squared norm of the gradient up to t. The baseline at t
 * is the mean of the group's returns, weighted by `W_t`. A group of one keeps its returns.
 *
 * @returns `[members][T]` advantages
 */
export function optimalTokenBaseline(group: readonly BaselineRow[]): Float64Array[] {
  if (group.length === 1) return group.map(({ returns }) => Float64Array.from(returns));
  const weightedSums: number[] = [];
  const weightSums: number[] = [];
  for (const { returns, logprobs, sumPiSquared } of group) {
    let weight = 0;
    for (const [token, value] of returns.entries()) {
      weight += 1 - 2 * Math.exp(logprobs[token]!) + sumPiSquared[token]!;
      weightedSums[token] = (weightedSums[token] ?? 0) + value * weight;
      weightSums[token] = (weightSums[token] ?? 0) + weight;
    }
  }
  const baselines = weightedSums.map((weighted, token) => weighted / (weightSums[token]! + 1e-8));
  return group.map(({ returns }) => Float64Array.from(returns, (value, token) => value - baselines[token]!));
}
