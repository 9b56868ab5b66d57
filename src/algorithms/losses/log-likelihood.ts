/** The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546), which with weights for advantages is cross-entropy. */
import type { SequenceLoss } from "./sequence-loss.ts";

/** `-lp A` */
export const logLikelihood: SequenceLoss = (row) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  for (let token = 0; token < count; token++) {
    const logprob = logprobs[at + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    const slope = -w * advantages[from + token]!;
    sum += logprob - old[oldAt + token]!;
    total += slope * logprob;
    slopes[at + token] = slope;
  }
  row.kl = -sum;
  return total;
};
