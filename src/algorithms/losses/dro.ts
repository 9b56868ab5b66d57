/** Direct reward optimisation (arXiv 2405.19107): the policy gradient held near the old policy by a square. */
import type { SequenceLoss } from "./sequence-loss.ts";

/** `-(lp A - beta/2 (lp - old)^2)` */
export const dro: SequenceLoss = (row, { droBeta }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    sum += logRatio;
    total += w * ((droBeta / 2) * logRatio * logRatio - logprobs[at + token]! * advantage);
    slopes[at + token] = w * (droBeta * logRatio - advantage);
  }
  row.kl = -sum;
  return total;
};
