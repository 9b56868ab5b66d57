/** One token from a row of log-probabilities, by the sampling parameters. */
import type { SamplingParams } from "../backends/engine.ts";

/** Tokens and their log-probabilities, most likely first. */
export const rankTokens = (logs: Float64Array): { token: number; log: number }[] =>
  Array.from(logs, (log, token) => ({ token, log })).sort(
    (left, right) => right.log - left.log || left.token - right.token,
  );

/**
 * Applies temperature, then top-k, top-p and min-p, each to the tokens that the previous one kept.
 *
 * @param uniform in [0, 1)
 */
export function drawToken(
  logs: Float64Array,
  { temperature, topK, topP, minP }: Pick<SamplingParams, "temperature" | "topK" | "topP" | "minP">,
  uniform: number,
): number {
  const peak = logs.reduce((left, right) => Math.max(left, right));
  if (temperature === 0) return logs.indexOf(peak);
  const ranked = rankTokens(logs).map(({ token, log }) => ({ token, weight: Math.exp((log - peak) / temperature) }));
  const total = (tokens: typeof ranked) => tokens.reduce((sum, { weight }) => sum + weight, 0);

  let kept = topK > 0 ? ranked.slice(0, topK) : ranked;
  if (topP < 1) {
    const enough = topP * total(kept);
    let sum = 0;
    // The token that crosses the threshold is kept.
    kept = kept.filter(({ weight }) => {
      const before = sum;
      sum += weight;
      return before < enough;
    });
  }
  if (minP > 0) kept = kept.filter(({ weight }) => weight >= minP);

  let left = uniform * total(kept);
  let last = 0;
  for (const { token, weight } of kept) {
    left -= weight;
    last = token;
    if (left < 0) break;
  }
  return last;
}
