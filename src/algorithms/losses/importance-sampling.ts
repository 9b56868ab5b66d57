/** The policy gradient weighted by the probability ratio, without a trust region. */
import { exp } from "./exp.ts";
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** `-rA` */
export const importanceSampling: SequenceLoss = (row, { logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const loss = -w * exp(held) * advantage;
    sum += held;
    total += loss;
    slopes[at + token] = held === logRatio ? loss : 0;
  }
  row.kl = -sum;
  return total;
};
