/** Direct reward optimization (arXiv 2405.19107): the policy gradient with a squared distance to the old policy. */
import { z } from "zod";
import { defineLoss, eachToken, emptyValues } from "./definition.ts";

/** `-(lp A - beta/2 (lp - old)^2)` */
export const dro = defineLoss({
  formula: "`-(lp A - dro_beta/2 (lp - old)^2)`",
  source: "2405.19107",
  ratio: "unclipped",
  constants: {
    dro_beta: z.number().min(0).default(0.05).describe("dro: weight of the quadratic term."),
  },
  ratioConstants: ["dro_beta"],
  evaluate(tokens, { dro_beta: beta }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      values.losses[t] = (beta / 2) * logRatio * logRatio - logprob * advantage;
      values.slopes[t] = beta * logRatio - advantage;
      values.kl -= logRatio;
    });
    return values;
  },
  trainsWithoutAdvantage: () => true,
  slopeAtOne: () => 1,
  onEngine({ dro_beta }, weight) {
    // The squared distance is not multiplied by the advantage, so all tokens need the same weight.
    if (weight === undefined) return undefined;
    const beta = dro_beta * weight;
    return {
      tinker: { name: "dro", config: { beta }, needsMask: true },
      // verl refuses 0.
      ...(beta > 0 ? { verl: { name: "dro", settings: { policy_loss: { dro_beta: beta } } } } : {}),
    };
  },
  served: { beta: null },
});
