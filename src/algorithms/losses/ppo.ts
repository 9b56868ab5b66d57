/** PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729). */
import { z } from "zod";
import { clamp, clipBounds, defineLoss, eachToken, emptyValues, type SequenceLoss, unbounded } from "./definition.ts";

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-clip_ratio_c * A`. The gradient is that of the branch selected. */
export const ppo = defineLoss({
  aliases: ["vanilla"],
  formula: "`max(-rA, -clip(r, low, high)A)`; with `clip_ratio_c: 3` at most `-3A` where A < 0 (dual clip)",
  source: "1707.06347, 1912.09729",
  ratio: "clipped",
  /** Keys of `rllm.algorithm` itself. */
  constants: {
    clip_ratio_c: z
      .number()
      .gt(1)
      .nullable()
      .default(null)
      .describe("Dual-clip PPO: caps the loss of tokens with a negative advantage at this ratio; null is off.")
      .meta({ note: "verl's own default is 3." }),
  },
  ratioConstants: ["clip_ratio_c"],
  evaluate(tokens, settings) {
    const values = clippedSurrogate(tokens, settings);
    const { clip_ratio_c: dual } = settings;
    if (dual === null) return values;
    tokens.advantages.forEach((advantage, t) => {
      const cap = -dual * advantage;
      if (advantage >= 0 || !(values.losses[t]! > cap)) return;
      values.losses[t] = cap;
      values.slopes[t] = 0;
      values.capped++;
    });
    return values;
  },
  caps: ({ clip_ratio_c: dual }) => dual !== null,
  slopeAtOne: ({ low, high }) => (low <= 1 && high >= 1 ? 1 : undefined),
  onEngine({ clip_ratio_c: dual, ...settings }) {
    const { tinker, verl } = clipBounds(settings);
    return {
      // Tinker's ppo has no dual clip.
      ...(dual === null ? { tinker: { name: "ppo", config: tinker } } : {}),
      verl: { name: "vanilla", settings: { ...verl, clip_ratio_c: dual ?? unbounded } },
    };
  },
  served: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
});

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
