/** Soft adaptive policy optimization (arXiv 2511.20347): a sigmoid gate instead of PPO's hard clip. */
import { z } from "zod";
import { clamp, defineLoss, eachToken, emptyValues } from "./definition.ts";

/** `-A 4/tau sigmoid(tau (r - 1))`, tau by the sign of A. */
export const sapo = defineLoss({
  formula: "`-A 4/tau sigmoid(tau (r - 1))`, tau `tau_pos` where A > 0, `tau_neg` elsewhere",
  source: "2511.20347",
  ratio: "unclipped",
  constants: {
    tau_pos: z.number().gt(0).default(1).describe("sapo: temperature for advantages above 0."),
    tau_neg: z.number().gt(0).default(1.05).describe("sapo: temperature for advantages of 0 and below."),
  },
  evaluate(tokens, { tau_pos, tau_neg, logRatioLimit }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      const ratio = Math.exp(held);
      const tau = advantage > 0 ? tau_pos : tau_neg;
      const gate = 1 / (1 + Math.exp(-tau * (ratio - 1)));
      values.losses[t] = (-4 / tau) * gate * advantage;
      values.slopes[t] = held === logRatio ? -4 * gate * (1 - gate) * ratio * advantage : 0;
      values.kl -= held;
    });
    return values;
  },
  aggMode: "seq-mean-token-mean",
  slopeAtOne: () => 1,
  onEngine: ({ tau_pos, tau_neg }) => ({ verl: { name: "sapo", settings: { tau_pos, tau_neg }, averages: true } }),
});
