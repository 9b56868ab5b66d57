/** CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift"). */
import { clamp, eachToken, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
export const cpgd: SequenceLoss = (tokens, { low, high, cpgdDrift, logRatioLimit }) => {
  const [logLow, logHigh] = [Math.log(Math.max(low, 0)), Math.log(high)];
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const growth = Math.expm1(held);
    const clips = (advantage > 0 && logRatio > logHigh) || (advantage < 0 && logRatio < logLow);
    const moved = clips ? old + clamp(logRatio, logLow, logHigh) : logprob;
    values.losses[t] = -moved * advantage + cpgdDrift * (growth - held);
    values.slopes[t] = (clips ? 0 : -advantage) + (held === logRatio ? cpgdDrift * growth : 0);
    values.kl -= logRatio;
    if (clips) values.clipped++;
  });
  return values;
};
