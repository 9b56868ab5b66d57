/** CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that no token loses its gradient. */
import { tokenLoss } from "./token-loss.ts";

/** `-sg(clip(r, low, high)) A lp` */
export const cispo = tokenLoss(({ logprob, logRatio, advantage }, { low, high, logRatioLimit }) => {
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const ratio = held.exp();
  const slope = ratio.clamp(low, high).times(advantage).negated();
  const outside = ratio.below(low).or(ratio.above(high));
  const counts = advantage.above(0).or(advantage.below(0));
  return { loss: slope.times(logprob), slope, kl: held.negated(), clipped: outside.and(counts) };
});
