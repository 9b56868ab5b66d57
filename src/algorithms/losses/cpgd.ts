/** CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift"). */
import { exp } from "./exp.ts";
import { clamp, type SequenceLoss } from "./sequence-loss.ts";

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
export const cpgd: SequenceLoss = (row, { low, high, cpgdDrift, logRatioLimit }) => {
  const { count, at, oldAt, from, logprobs, old, advantages, weights, weight, slopes } = row;
  const least = Math.log(Math.max(low, 0));
  const most = Math.log(high);
  let total = 0;
  let sum = 0;
  let clipped = 0;
  for (let token = 0; token < count; token++) {
    const advantage = advantages[from + token]!;
    const logRatio = logprobs[at + token]! - old[oldAt + token]!;
    const w = weights === null ? weight : weight * weights[from + token]!;
    let loss = -logprobs[at + token]! * advantage;
    let slope = -advantage;
    if (advantage > 0 ? logRatio > most : logRatio < least) {
      loss += (logRatio - (advantage > 0 ? most : least)) * advantage;
      slope = 0;
      if (advantage !== 0) clipped++;
    }
    if (cpgdDrift > 0) {
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      const growth = exp(held) - 1;
      loss += cpgdDrift * (growth - held);
      if (held === logRatio) slope += cpgdDrift * growth;
    }
    sum += logRatio;
    total += w * loss;
    slopes[at + token] = w * slope;
  }
  row.kl = -sum;
  row.clipped = clipped;
  return total;
};
