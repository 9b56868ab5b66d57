/** The policy gradient weighted by the probability ratio, without a trust region. */
import { boundedRatio, type TokenLoss } from "./token-loss.ts";

/** `-rA` */
export const importanceSampling: TokenLoss = (logRatio, advantage, { logRatioLimit }) => {
  const { ratio, slope } = boundedRatio(logRatio, logRatioLimit);
  return { loss: -ratio * advantage, slope: -slope * advantage, clipped: false, capped: false };
};
