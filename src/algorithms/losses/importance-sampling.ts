/** The policy gradient weighted by the probability ratio, without a trust region. */
import { clamp, clipBounds, defineLoss, eachToken, emptyValues, unbounded } from "./definition.ts";

/** `-rA` */
export const importanceSampling = defineLoss({
  formula: "`-rA`",
  source: "",
  ratio: "unclipped",
  constants: {},
  evaluate(tokens, { logRatioLimit }) {
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
  },
  slopeAtOne: () => 1,
  onEngine: () => ({
    tinker: { name: "importance_sampling", config: {} },
    verl: {
      name: "vanilla",
      settings: { ...clipBounds({ low: 0, high: unbounded }).verl, clip_ratio_c: unbounded },
    },
  }),
  served: {},
});
