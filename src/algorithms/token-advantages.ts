/** The advantages of a batch's tokens, from the one figure that each sequence begins with. */
import type { TrainingBatch } from "../trajectories/types.ts";
import { type AdvantageOptions, estimatorOf } from "./advantages.ts";
import { returnsToGo } from "./estimators/returns.ts";
import { clipSymmetric } from "./rewards/clip.ts";
import { tokenRewards } from "./rewards/token-rewards.ts";
import { whiteningOf, whitenings } from "./whitening.ts";

export interface TokenAdvantageOptions extends AdvantageOptions {
  /** Discount of a token. */
  gamma: number;
  /** Whiten the tokens of the batch, whatever the estimator (LightRFT's `advantages_norm`). */
  whiten: boolean;
  /** Bound on advantages, both ways; 0 is none. */
  clip: number;
}

type Tokens = Pick<TrainingBatch, "advantages" | "offsets" | "roles">;

/** `[N]`: each sequence's figure counts for its last token, and discounted for those before. */
export function discountAdvantages({ advantages, offsets, roles }: Tokens, gamma: number): Float32Array {
  if (gamma === 1) return advantages;
  const discounted = advantages.slice();
  for (const span of spansOf(discounted, { offsets, roles })) {
    span.set(returnsToGo(tokenRewards(span.length, span.at(-1) ?? 0), gamma));
  }
  return discounted;
}

/**
 * In this order: the whitening of the estimators that have one (over the tokens of their roles), the whitening of all
 * tokens, the bound.
 *
 * @returns `[N]`, and `advantage/clip_fraction` where there is a bound
 */
export function normaliseAdvantages(
  { advantages: given, offsets, roles }: Tokens,
  options: TokenAdvantageOptions,
): { advantages: Float32Array; metrics: Record<string, number> } {
  const advantages = Float64Array.from(given);
  const spans = spansOf(advantages, { offsets, roles });
  for (const role of new Set(roles)) {
    const { whitens } = estimatorOf(role, options);
    if (whitens === "always" || (whitens === "by-preset" && options.whitens === "tokens")) {
      whitenSpans(
        spans.filter((_, index) => roles[index] === role),
        whitenings.verl,
      );
    }
  }
  if (options.whiten) whitenSpans(spans, whitenings.lightrft);
  const { values, fraction } = clipSymmetric(advantages, options.clip);
  return {
    advantages: Float32Array.from(values),
    metrics: options.clip > 0 ? { "advantage/clip_fraction": fraction } : {},
  };
}

function spansOf<Values extends Float32Array | Float64Array>(
  values: Values,
  { offsets, roles }: Omit<Tokens, "advantages">,
): Values[] {
  return roles.map((_, index) => values.subarray(offsets[index]!, offsets[index + 1]!) as Values);
}

/** In place, over all tokens of the spans. */
function whitenSpans(spans: readonly Float64Array[], options: Parameters<typeof whiteningOf>[1]): void {
  const all = Float64Array.from(spans.flatMap((span) => Array.from(span)));
  const { center, factor } = whiteningOf(all, options);
  for (const span of spans) {
    for (let token = 0; token < span.length; token++) span[token] = (span[token]! - center) * factor;
  }
}
