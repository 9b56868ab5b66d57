/** PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729). */
import { boundedRatio, type TokenLoss } from "./token-loss.ts";

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-dual * A`. The gradient is that of the branch selected. */
export const ppo: TokenLoss = (logRatio, advantage, { low, high, dual, logRatioLimit }) => {
  const { ratio, slope } = boundedRatio(logRatio, logRatioLimit);
  const unclipped = -ratio * advantage;
  const bounded = -Math.min(Math.max(ratio, low), high) * advantage;
  const clipped = bounded > unclipped;
  const loss = clipped ? bounded : unclipped;
  if (dual !== null && advantage < 0 && loss > -dual * advantage) {
    return { loss: -dual * advantage, slope: 0, clipped, capped: true };
  }
  return { loss, slope: clipped ? 0 : -slope * advantage, clipped, capped: false };
};
