/** Advantages of a batch's tokens, from the advantage of each sequence. */
import { rowsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { returnsToGo, tokenRewards } from "../estimators/returns.ts";
import { clipSymmetric } from "../rewards/change-rewards.ts";
import { type AdvantageOptions, estimatorOf } from "./estimate-advantages.ts";
import { type WhiteningOptions, whiteningOf, whitenings } from "./whitening.ts";

export interface TokenAdvantageOptions extends AdvantageOptions {
  /** Discount per token. */
  gamma: number;
  /** Whiten the tokens of the batch, regardless of the estimator (LightRFT's `advantages_norm`). */
  whiten: boolean;
  /** Bound on the absolute advantage; 0 turns it off. */
  clip: number;
}

type Tokens = Pick<TrainingBatch, "advantages" | "offsets" | "roles">;

/** `[N]`: each sequence's advantage counts for its last token and, discounted, for the earlier ones. */
export function discountAdvantages({ advantages, offsets }: Tokens, gamma: number): Float32Array {
  if (gamma === 1) return advantages;
  const discounted = advantages.slice();
  for (const row of rowsOf(discounted, offsets)) {
    row.set(returnsToGo(tokenRewards(row.length, row.at(-1) ?? 0), gamma));
  }
  return discounted;
}

/**
 * Applies, in this order: the whitening of estimators that have one (over the tokens of their roles), the whitening of
 * all tokens, the bound.
 *
 * @returns `[N]`, and `advantage/clip_fraction` if there is a bound
 */
export function normalizeAdvantages(
  { advantages: given, offsets, roles }: Tokens,
  options: TokenAdvantageOptions,
): { advantages: Float32Array; metrics: Record<string, number> } {
  const advantages = Float64Array.from(given);
  const rows = rowsOf(advantages, offsets);
  for (const role of new Set(roles)) {
    const { whitens } = estimatorOf(role, options);
    if (whitens === "always" || (whitens === "by-preset" && options.whitens === "tokens")) {
      const ofRole = rows.filter((_, index) => roles[index] === role);
      whitenRows(ofRole, whitenings.verl);
    }
  }
  if (options.whiten) whitenRows(rows, whitenings.lightrft);
  const { values, fraction } = clipSymmetric(advantages, options.clip);
  return {
    advantages: Float32Array.from(values),
    metrics: options.clip > 0 ? { "advantage/clip_fraction": fraction } : {},
  };
}

/** In place, over all tokens of the rows. */
function whitenRows(rows: readonly Float64Array[], options: WhiteningOptions): void {
  const { center, factor } = whiteningOf(
    rows.flatMap((row) => Array.from(row)),
    options,
  );
  for (const row of rows) row.set(row.map((value) => (value - center) * factor));
}
