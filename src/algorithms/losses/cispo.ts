/** CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that every token keeps its gradient. */
import { z } from "zod";
import { clamp, clipBounds, defineLoss, eachToken, emptyValues } from "./definition.ts";

interface Bounds {
  low: number;
  high: number;
  cispo_low: number | null;
  cispo_high: number | null;
}

const boundsOf = ({ low, high, cispo_low, cispo_high }: Bounds) => ({
  low: cispo_low ?? low,
  high: cispo_high ?? high,
});

/** `-sg(clip(r, low, high)) A lp` */
export const cispo = defineLoss({
  formula: "`-sg(clip(r)) A lp`; the default bounds are PPO's",
  source: "2506.13585",
  ratio: "clipped",
  constants: {
    cispo_low: z
      .number()
      .min(0)
      .nullable()
      .default(null)
      .describe("cispo: lower bound of the importance weight; null is 1 - eps_clip."),
    cispo_high: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("cispo: upper bound of the importance weight; null is 1 + eps_clip_high."),
  },
  evaluate(tokens, settings) {
    const { low, high } = boundsOf(settings);
    const { logRatioLimit } = settings;
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const held = clamp(logprob - old, -logRatioLimit, logRatioLimit);
      const ratio = Math.exp(held);
      const slope = -clamp(ratio, low, high) * advantage;
      values.losses[t] = slope * logprob;
      values.slopes[t] = slope;
      values.kl -= held;
      if (advantage !== 0 && (ratio < low || ratio > high)) values.clipped++;
    });
    return values;
  },
  slopeAtOne(settings) {
    const { low, high } = boundsOf(settings);
    return Math.min(Math.max(1, low), high);
  },
  onEngine(settings) {
    const { tinker, verl } = clipBounds(boundsOf(settings));
    return { tinker: { name: "cispo", config: tinker }, verl: { name: "cispo", settings: verl } };
  },
  served: { clip_low_threshold: 0, clip_high_threshold: 4 },
});
