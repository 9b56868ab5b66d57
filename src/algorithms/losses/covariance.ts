/**
 * Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage rise together make the entropy
 * collapse. Clip-Cov removes the gradient of some of them; KL-Cov penalizes the worst for leaving the old policy.
 */
import { uniforms } from "../../random.ts";
import { importanceSampling } from "./importance-sampling.ts";
import { largestThreshold } from "./largest.ts";
import { clippedSurrogate } from "./ppo.ts";
import type { BatchTokens, LossSettings, SequenceLoss } from "./sequence-loss.ts";

/** PPO's clip; the marked tokens have neither loss nor gradient. `clipped` counts them. */
export const clipCov: SequenceLoss = (tokens, settings) => {
  const values = clippedSurrogate(tokens, settings);
  values.clipped = 0;
  tokens.marked?.forEach((mark, t) => {
    if (mark === 0) return;
    values.losses[t] = 0;
    values.slopes[t] = 0;
    values.clipped++;
  });
  return values;
};

/** `-rA`, plus `coef |ln r|` on the marked tokens. `kl` is the sum of |ln r|. */
export const klCov: SequenceLoss = (tokens, settings) => {
  const values = importanceSampling(tokens, settings);
  values.kl = 0;
  for (let t = 0; t < tokens.logprobs.length; t++) {
    const logRatio = tokens.logprobs[t]! - tokens.old[t]!;
    values.kl += Math.abs(logRatio);
    if (tokens.marked?.[t] !== 1) continue;
    values.losses[t]! += settings.klCovCoef * Math.abs(logRatio);
    values.slopes[t]! += settings.klCovCoef * Math.sign(logRatio);
  }
  return values;
};

/** Marks a random share of the tokens whose covariance is between the bounds and that PPO does not clip. */
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

/** Marks the given share of all tokens: those of largest covariance, at least one. */
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
