/** One token from a row of log-probabilities, by the sampling parameters. */
import type { SamplingParams } from "../backends/engine.ts";

/**
 * Temperature first, then top-k, top-p and min-p, each on what the one before has left.
 *
 * @param uniform in [0, 1)
 */
export function drawToken(logs: Float64Array, params: SamplingParams, uniform: number): number {
  const { temperature, topK, topP, minP } = params;
  const ranked = Array.from(logs.keys()).sort((left, right) => logs[right]! - logs[left]! || left - right);
  if (temperature === 0) return ranked[0]!;
  const peak = logs[ranked[0]!]!;
  const weight = (token: number) => Math.exp((logs[token]! - peak) / temperature);
  const total = (tokens: readonly number[]) => tokens.reduce((sum, token) => sum + weight(token), 0);

  let kept = topK > 0 ? ranked.slice(0, topK) : ranked;
  if (topP < 1) {
    const enough = topP * total(kept);
    let sum = 0;
    // The token that crosses the threshold stays.
    kept = kept.filter((token) => {
      const before = sum;
      sum += weight(token);
      return before < enough;
    });
  }
  if (minP > 0) kept = kept.filter((token) => weight(token) >= minP);

  let left = uniform * total(kept);
  for (const token of kept) {
    left -= weight(token);
    if (left < 0) return token;
  }
  return kept.at(-1)!;
}
