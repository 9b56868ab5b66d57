/** Soft adaptive policy optimization (arXiv 2511.20347): a sigmoid gate instead of PPO's hard clip. */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-A 4/tau sigmoid(tau (r - 1))`, tau by the sign of A. */
export const sapo: SequenceLoss = (tokens, { tauPositive, tauNegative, logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const ratio = Math.exp(held);
    const tau = advantage > 0 ? tauPositive : tauNegative;
    const gate = 1 / (1 + Math.exp(-tau * (ratio - 1)));
    values.losses[t] = (-4 / tau) * gate * advantage;
    values.slopes[t] = held === logRatio ? -4 * gate * (1 - gate) * ratio * advantage : 0;
    values.kl -= held;
  });
  return values;
};
