/** The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546); with weights as advantages it is cross-entropy. */
import { eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-lp A` */
export const logLikelihood: SequenceLoss = (tokens) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    values.losses[t] = -logprob * advantage;
    values.slopes[t] = -advantage;
    values.kl += old - logprob;
  });
  return values;
};
