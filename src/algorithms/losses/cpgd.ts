/** CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift"). */
import { tokenLoss } from "./token-loss.ts";

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
export const cpgd = tokenLoss(({ logprob, logRatio, advantage }, settings) => {
  const { logLow, logHigh, cpgdDrift, logRatioLimit } = settings;
  const [gain, harm] = [advantage.above(0), advantage.below(0)];
  const clipped = gain.and(logRatio.above(logHigh)).or(harm.and(logRatio.below(logLow)));
  const beyond = logRatio.minus(gain.choose(logHigh, logLow));
  const moved = clipped.choose(logprob.minus(beyond), logprob);
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const growth = held.expm1();
  const drifts = cpgdDrift.above(0);
  const slope = clipped.choose(0, advantage.negated());
  return {
    loss: drifts.choose(cpgdDrift.times(growth.minus(held)), 0).minus(moved.times(advantage)),
    slope: slope.plus(drifts.and(held.equals(logRatio)).choose(cpgdDrift.times(growth), 0)),
    ...{ kl: logRatio.negated(), clipped },
  };
});
