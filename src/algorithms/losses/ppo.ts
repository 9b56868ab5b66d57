/** PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729). */
import type { Lanes } from "../kernels/lanes.ts";
import { tokenLoss } from "./token-loss.ts";

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-dual * A`. The gradient is that of the branch selected. */
export const ppo = tokenLoss(({ logRatio, advantage }, { low, high, dual, logRatioLimit }) => {
  const { held, loss, slope, clipped } = clippedSurrogate(logRatio, advantage, { low, high, logRatioLimit });
  const cap = dual.times(advantage).negated();
  const capped = advantage.below(0).and(loss.above(cap));
  return {
    loss: capped.choose(cap, loss),
    slope: capped.choose(0, slope),
    ...{ kl: held.negated(), clipped, capped },
  };
});

/** PPO's loss without the dual clip. */
export function clippedSurrogate(
  logRatio: Lanes,
  advantage: Lanes,
  { low, high, logRatioLimit }: { low: Lanes; high: Lanes; logRatioLimit: Lanes },
) {
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const ratio = held.exp();
  const [gain, harm] = [advantage.above(0), advantage.below(0)];
  const clipped = gain.and(ratio.above(high)).or(harm.and(ratio.below(low)));
  const plain = ratio.times(advantage).negated();
  return {
    ...{ held, clipped },
    loss: clipped.choose(gain.choose(high, low).times(advantage).negated(), plain),
    slope: clipped.choose(0, held.equals(logRatio).choose(plain, 0)),
  };
}
