/** Soft adaptive policy optimisation (arXiv 2511.20347): a sigmoid gate where PPO has a hard clip. */
import { constant, type Lanes } from "../kernels/lanes.ts";
import { tokenLoss } from "./token-loss.ts";

/** `-A 4/tau sigmoid(tau (r - 1))`, tau by the sign of A. */
export const sapo = tokenLoss(({ logRatio, advantage }, { tauPositive, tauNegative, logRatioLimit }) => {
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const ratio = held.exp();
  const gain = advantage.above(0);
  const tau = gain.choose(tauPositive, tauNegative);
  const opposite = tau.times(ratio.minus(1)).negated().exp();
  const gate = constant(1).over(opposite.plus(1));
  const slope = gate.times(constant(1).minus(gate)).times(ratio).times(advantage).times(-4);
  return {
    loss: gain.choose(scale(tauPositive), scale(tauNegative)).times(gate).times(advantage),
    slope: held.equals(logRatio).choose(slope, 0),
    kl: held.negated(),
  };
});

const scale = (tau: Lanes) => constant(-4).over(tau);
