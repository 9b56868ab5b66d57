/** Direct reward optimisation (arXiv 2405.19107): the policy gradient held near the old policy by a square. */
import { tokenLoss } from "./token-loss.ts";

/** `-(lp A - beta/2 (lp - old)^2)` */
export const dro = tokenLoss(({ logprob, logRatio, advantage }, { droBeta }) => ({
  loss: logRatio.times(logRatio).times(droBeta).times(0.5).minus(logprob.times(advantage)),
  slope: droBeta.times(logRatio).minus(advantage),
  kl: logRatio.negated(),
}));
