/** Direct reward optimization (arXiv 2405.19107): the policy gradient with a squared distance to the old policy. */
import { eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-(lp A - beta/2 (lp - old)^2)` */
export const dro: SequenceLoss = (tokens, { droBeta }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    values.losses[t] = (droBeta / 2) * logRatio * logRatio - logprob * advantage;
    values.slopes[t] = droBeta * logRatio - advantage;
    values.kl -= logRatio;
  });
  return values;
};
