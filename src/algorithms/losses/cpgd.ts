/** CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift"). */
import { z } from "zod";
import { clamp, defineLoss, eachToken, emptyValues } from "./definition.ts";

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
export const cpgd = defineLoss({
  formula:
    "`-min(lp A, clip(lp, old + ln low, old + ln high) A)` and `cpgd_drift_coef` times `r - 1 - ln r` (policy drift)",
  source: "2505.12504",
  ratio: "clipped",
  constants: {
    cpgd_drift_coef: z
      .number()
      .min(0)
      .default(0.1)
      .describe("cpgd: weight of the KL to the old policy (called policy drift in the paper); 0 is off.")
      .meta({ note: "LightRFT's code does not have this term." }),
  },
  ratioConstants: ["cpgd_drift_coef"],
  evaluate(tokens, { low, high, cpgd_drift_coef: drift, logRatioLimit }) {
    const [logLow, logHigh] = [Math.log(Math.max(low, 0)), Math.log(high)];
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      const growth = Math.expm1(held);
      const clips = (advantage > 0 && logRatio > logHigh) || (advantage < 0 && logRatio < logLow);
      const moved = clips ? old + clamp(logRatio, logLow, logHigh) : logprob;
      values.losses[t] = -moved * advantage + drift * (growth - held);
      values.slopes[t] = (clips ? 0 : -advantage) + (held === logRatio ? drift * growth : 0);
      values.kl -= logRatio;
      if (clips) values.clipped++;
    });
    return values;
  },
  trainsWithoutAdvantage: ({ cpgd_drift_coef: drift }) => drift > 0,
});
