/** Soft adaptive policy optimisation (arXiv 2511.20347): a sigmoid gate where PPO has a hard clip. */
import { exp } from "./exp.ts";
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/** `-A 4/tau sigmoid(tau (r - 1))`, tau by the sign of A. */
export const sapo: SequenceLoss = (row, { tauPositive, tauNegative, logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  let total = 0;
  let sum = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const ratio = exp(held);
    const tau = advantage > 0 ? tauPositive : tauNegative;
    const gate = 1 / (1 + exp(-tau * (ratio - 1)));
    sum += held;
    total -= (4 / tau) * w * gate * advantage;
    slopes[at + token] = held === logRatio ? -4 * w * gate * (1 - gate) * ratio * advantage : 0;
  }
  row.kl = -sum;
  return total;
};
