/** The policy gradient weighted by the probability ratio; optionally without tokens that became much less likely. */
import { z } from "zod";
import { clamp, clipBounds, defineLoss, eachToken, emptyValues, unbounded } from "./definition.ts";

/** `-rA`, and 0 where `exp(old) - exp(lp) > max_probability_drop`, the rule of prime-rl's loss against a teacher. */
export const importanceSampling = defineLoss({
  formula: "`-rA`; with `max_probability_drop`, 0 for tokens whose probability fell by more",
  source: "",
  ratio: "unclipped",
  constants: {
    max_probability_drop: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe(
        "importance_sampling: tokens whose probability fell by more than this since the old policy have no gradient, as in prime-rl (0.2); null keeps all.",
      ),
  },
  ratioConstants: ["max_probability_drop"],
  evaluate(tokens, { logRatioLimit, max_probability_drop: maxDrop }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      values.kl -= held;
      if (maxDrop !== null && Math.exp(old) - Math.exp(logprob) > maxDrop) {
        values.clipped++;
        return;
      }
      const loss = -Math.exp(held) * advantage;
      values.losses[t] = loss;
      values.slopes[t] = held === logRatio ? loss : 0;
    });
    return values;
  },
  slopeAtOne: () => 1,
  onEngine: ({ max_probability_drop: maxDrop }) =>
    maxDrop === null
      ? {
          tinker: { name: "importance_sampling", config: {} },
          verl: {
            name: "vanilla",
            settings: { ...clipBounds({ low: 0, high: unbounded }).verl, clip_ratio_c: unbounded },
          },
        }
      : undefined,
  served: {},
});
