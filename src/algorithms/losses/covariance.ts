/**
 * Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage rise together make the entropy
 * collapse; the first takes the gradient of some of them away, the second holds the worst near the old policy.
 */
import { uniforms } from "../../random.ts";
import { largestThreshold } from "./largest.ts";
import { clippedSurrogate } from "./ppo.ts";
import type { BatchTokens, LossSettings } from "./sequence-loss.ts";
import { tokenLoss } from "./token-loss.ts";

/** PPO's clip without the marked tokens. `clipped` counts those. */
export const clipCov = tokenLoss(({ logRatio, advantage, marked }, settings) => {
  const { held, loss, slope } = clippedSurrogate(logRatio, advantage, settings);
  return { loss: marked.choose(0, loss), slope: marked.choose(0, slope), kl: held.negated(), clipped: marked };
});

/** `-rA`, and `coef |ln r|` on the marked tokens. `kl` is the sum of |ln r|. */
export const klCov = tokenLoss(({ logRatio, advantage, marked }, { klCovCoef, logRatioLimit }) => {
  const held = logRatio.clamp(logRatioLimit.negated(), logRatioLimit);
  const loss = held.exp().times(advantage).negated();
  const penalty = marked.choose(klCovCoef, 0);
  return {
    loss: loss.plus(penalty.times(logRatio.abs())),
    slope: held.equals(logRatio).choose(loss, 0).plus(penalty.times(logRatio.sign())),
    kl: logRatio.abs(),
  };
});

/** A random share of the tokens whose covariance is between the bounds and that PPO's clip leaves alone. */
export function markForClipCov(tokens: BatchTokens, settings: LossSettings): Uint8Array {
  const { clipCovRatio, clipCovLow, clipCovHigh, low, high, seed } = settings;
  const { advantages, logprobs, old } = tokens;
  const { advantageMean, logprobMean } = meansOf(tokens);
  const [least, most] = [Math.log(low), Math.log(high)];
  const count = advantages.length;
  const candidates = new Int32Array(count);
  let found = 0;
  for (let token = 0; token < count; token++) {
    const [advantage, logprob] = [advantages[token]!, logprobs[token]!];
    const covariance = (advantage - advantageMean) * (logprob - logprobMean);
    if (!(covariance > clipCovLow && covariance < clipCovHigh)) continue;
    const logRatio = logprob - old[token]!;
    if (advantage > 0 ? logRatio <= most : logRatio >= least) candidates[found++] = token;
  }
  const marked = new Uint8Array(count);
  const wanted = Math.min(Math.max(Math.floor(clipCovRatio * count), 1), found);
  const next = uniforms(seed);
  for (let taken = 0; taken < wanted; taken++) {
    const other = taken + Math.floor(next() * (found - taken));
    marked[candidates[other]!] = 1;
    candidates[other] = candidates[taken]!;
  }
  return marked;
}

/** The given share of all tokens: those of largest covariance, at least one. */
export function markForKlCov(tokens: BatchTokens, { klCovRatio }: LossSettings): Uint8Array {
  const { advantages, logprobs } = tokens;
  const { advantageMean, logprobMean } = meansOf(tokens);
  const covariances = new Float64Array(advantages.length);
  for (let token = 0; token < covariances.length; token++) {
    covariances[token] = (advantages[token]! - advantageMean) * (logprobs[token]! - logprobMean);
  }
  const marked = new Uint8Array(covariances.length);
  let left = Math.min(Math.max(1, Math.floor(covariances.length * klCovRatio)), covariances.length);
  if (left === 0) return marked;
  const threshold = largestThreshold(covariances, left);
  for (let token = 0; token < marked.length; token++) {
    if (covariances[token]! > threshold) {
      marked[token] = 1;
      left--;
    }
  }
  for (let token = 0; left > 0 && token < marked.length; token++) {
    if (covariances[token] !== threshold) continue;
    marked[token] = 1;
    left--;
  }
  return marked;
}

function meansOf({ advantages, logprobs }: BatchTokens): { advantageMean: number; logprobMean: number } {
  const count = advantages.length;
  let advantageSum = 0;
  let logprobSum = 0;
  for (let token = 0; token < count; token++) {
    advantageSum += advantages[token]!;
    logprobSum += logprobs[token]!;
  }
  return { advantageMean: advantageSum / count, logprobMean: logprobSum / count };
}
