/** The policy gradient weighted by the probability ratio, without a trust region. */
import { clamp, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `-rA` */
export const importanceSampling: SequenceLoss = ({ logprobs, old, advantages }, { logRatioLimit }) => {
  const values = emptyValues(logprobs.length);
  for (let t = 0; t < logprobs.length; t++) {
    const logRatio = logprobs[t]! - old[t]!;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const loss = -Math.exp(held) * advantages[t]!;
    values.losses[t] = loss;
    values.slopes[t] = held === logRatio ? loss : 0;
    values.kl -= held;
  }
  return values;
};
