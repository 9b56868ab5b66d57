/** Direct reward optimization (arXiv 2405.19107): the policy gradient with a squared distance to the old policy. */
import { emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-(lp A - beta/2 (lp - old)^2)` */
export const dro: SequenceLoss = ({ logprobs, old, advantages }, { droBeta }) => {
  const values = emptyValues(logprobs.length);
  for (let t = 0; t < logprobs.length; t++) {
    const logRatio = logprobs[t]! - old[t]!;
    values.losses[t] = (droBeta / 2) * logRatio * logRatio - logprobs[t]! * advantages[t]!;
    values.slopes[t] = droBeta * logRatio - advantages[t]!;
    values.kl -= logRatio;
  }
  return values;
};
