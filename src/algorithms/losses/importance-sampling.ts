/** The policy gradient weighted by the probability ratio, without a trust region. */
import { tokenLoss } from "./token-loss.ts";

/** `-rA` */
export const importanceSampling = tokenLoss(({ logRatio, advantage }, { logRatioLimit }) => {
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const loss = held.exp().times(advantage).negated();
  return { loss, slope: held.equals(logRatio).choose(loss, 0), kl: held.negated() };
});
