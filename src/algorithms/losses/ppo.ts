/** PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729). */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-dual * A`. The gradient is that of the branch selected. */
export const ppo: SequenceLoss = (tokens, settings) => {
  const values = clippedSurrogate(tokens, settings);
  tokens.advantages.forEach((advantage, t) => {
    const cap = -settings.dual * advantage;
    if (advantage >= 0 || !(values.losses[t]! > cap)) return;
    values.losses[t] = cap;
    values.slopes[t] = 0;
    values.capped++;
  });
  return values;
};

/** PPO's loss without the dual clip. */
export const clippedSurrogate: SequenceLoss = (tokens, { low, high, logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const ratio = Math.exp(held);
    const clips = (advantage > 0 && ratio > high) || (advantage < 0 && ratio < low);
    const loss = -(clips ? clamp(ratio, low, high) : ratio) * advantage;
    values.losses[t] = loss;
    values.slopes[t] = clips || held !== logRatio ? 0 : loss;
    values.kl -= held;
    if (clips) values.clipped++;
  });
  return values;
};
