/** The policy gradient weighted by the probability ratio, without a trust region. */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-rA` */
export const importanceSampling: SequenceLoss = (tokens, { logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const loss = -Math.exp(held) * advantage;
    values.losses[t] = loss;
    values.slopes[t] = held === logRatio ? loss : 0;
    values.kl -= held;
  });
  return values;
};
