/** CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift"). */
import { clamp, emptyValues, type SequenceLoss } from "./sequence-loss.ts";

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
export const cpgd: SequenceLoss = ({ logprobs, old, advantages }, { low, high, cpgdDrift, logRatioLimit }) => {
  const [logLow, logHigh] = [Math.log(Math.max(low, 0)), Math.log(high)];
  const values = emptyValues(logprobs.length);
  for (let t = 0; t < logprobs.length; t++) {
    const [logprob, advantage] = [logprobs[t]!, advantages[t]!];
    const logRatio = logprob - old[t]!;
    const clips = (advantage > 0 && logRatio > logHigh) || (advantage < 0 && logRatio < logLow);
    const moved = clips ? old[t]! + clamp(logRatio, logLow, logHigh) : logprob;
    values.losses[t] = -moved * advantage;
    values.slopes[t] = clips ? 0 : -advantage;
    values.kl -= logRatio;
    if (clips) values.clipped++;
    if (cpgdDrift === 0) continue;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    values.losses[t]! += cpgdDrift * (Math.expm1(held) - held);
    if (held === logRatio) values.slopes[t]! += cpgdDrift * Math.expm1(held);
  }
  return values;
};
