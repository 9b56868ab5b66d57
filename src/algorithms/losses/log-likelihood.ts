/** The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546), which with weights for advantages is cross-entropy. */
import { tokenLoss } from "./token-loss.ts";

/** `-lp A` */
export const logLikelihood = tokenLoss(({ logprob, logRatio, advantage }) => ({
  loss: logprob.times(advantage).negated(),
  slope: advantage.negated(),
  kl: logRatio.negated(),
}));
