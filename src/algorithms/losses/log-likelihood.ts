/** The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546); with weights as advantages it is cross-entropy. */
import { emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-lp A` */
export const logLikelihood: SequenceLoss = ({ logprobs, old, advantages }) => {
  const values = emptyValues(logprobs.length);
  for (let t = 0; t < logprobs.length; t++) {
    values.losses[t] = -logprobs[t]! * advantages[t]!;
    values.slopes[t] = -advantages[t]!;
    values.kl += old[t]! - logprobs[t]!;
  }
  return values;
};
