/** GSPO (arXiv 2507.18071): PPO's clip on the geometric mean of a sequence's ratios. */
import { z } from "zod";
import { clamp, clipBounds, defineLoss, eachToken, emptyValues } from "./definition.ts";
import { ppo } from "./ppo.ts";

/** verl's value: the mean log-ratio is bounded by it, with zero gradient beyond. */
const maxMeanLogRatio = 10;

/**
 * `max(-sA, -clip(s, low, high)A)` with `s = exp(mean of the sequence's log-ratios)`. The gradient is that of GSPO-token,
 * where each token moves `s` on its own, or goes through the mean. They are equal if a sequence has a single advantage.
 */
export const gspo = defineLoss({
  formula: "PPO's with one ratio per reply, `exp(mean(lp - old))`; `gspo_gradient` is `token` or `sequence`",
  source: "2507.18071",
  ratio: "clipped",
  constants: {
    gspo_gradient: z
      .enum(["token", "sequence"])
      .default("token")
      .describe("gspo: gradient per token with the ratio held fixed (verl), or through the sequence mean (TRL)."),
  },
  evaluate(tokens, { low, high, gspo_gradient }) {
    const values = emptyValues(tokens);
    let sum = 0;
    eachToken(tokens, (_, logprob, old) => {
      sum += logprob - old;
    });
    const mean = sum / tokens.logprobs.length;
    const ratio = Math.exp(Math.min(mean, maxMeanLogRatio));
    const bounded = clamp(ratio, low, high);
    tokens.advantages.forEach((advantage, t) => {
      const clips = -bounded * advantage > -ratio * advantage;
      const loss = -(clips ? bounded : ratio) * advantage;
      values.losses[t] = loss;
      values.slopes[t] = clips || mean > maxMeanLogRatio ? 0 : loss;
      if (clips) values.clipped++;
    });
    values.kl = -sum;
    if (gspo_gradient === "sequence") values.slopesOfMean = true;
    return values;
  },
  aggMode: "seq-mean-token-mean",
  slopeAtOne: ({ low, high, gspo_gradient }) => (gspo_gradient === "token" && low <= 1 && high >= 1 ? 1 : undefined),
  // Tinker's gspo is not used: its ratio is the mean over the tokens of a mask.
  onEngine: ({ low, high, gspo_gradient }) =>
    gspo_gradient === "token" ? { verl: { name: "gspo", settings: clipBounds({ low, high }).verl } } : undefined,
  served: ppo.served!,
});
