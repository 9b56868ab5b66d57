/**
 * Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage rise together make the entropy
 * collapse. Clip-Cov removes the gradient of some of them; KL-Cov penalizes the worst for leaving the old policy.
 */
import { uniforms } from "../../random.ts";
import { mean } from "../../statistics.ts";
import { largestPositions } from "./largest.ts";
import { clippedSurrogate } from "./ppo.ts";
import {
  type BatchTokens,
  clamp,
  eachToken,
  emptyValues,
  type LossSettings,
  type SequenceLoss,
} from "./sequence-loss.ts";

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
export const klCov: SequenceLoss = (tokens, { klCovCoef, logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const loss = -Math.exp(held) * advantage;
    const penalty = tokens.marked?.[t] === 1 ? klCovCoef : 0;
    values.losses[t] = loss + penalty * Math.abs(logRatio);
    values.slopes[t] = (held === logRatio ? loss : 0) + penalty * Math.sign(logRatio);
    values.kl += Math.abs(logRatio);
  });
  return values;
};

/** Marks the given share of all tokens, drawn from those whose covariance is between the bounds and that PPO does not clip. */
export function markForClipCov(tokens: BatchTokens, settings: LossSettings): Uint8Array {
  const { clipCovRatio, clipCovLow, clipCovHigh, low, high, seed } = settings;
  const [least, most] = [Math.log(low), Math.log(high)];
  const covariances = covariancesOf(tokens);
  const candidates: number[] = [];
  eachToken(tokens, (t, logprob, old, advantage) => {
    const covariance = covariances[t] ?? 0;
    if (!(covariance > clipCovLow && covariance < clipCovHigh)) return;
    if (advantage > 0 ? logprob - old <= most : logprob - old >= least) candidates.push(t);
  });
  const marked = new Uint8Array(covariances.length);
  const wanted = Math.min(Math.max(Math.floor(clipCovRatio * marked.length), 1), candidates.length);
  const next = uniforms(seed);
  for (let taken = 0; taken < wanted; taken++) {
    const other = taken + Math.floor(next() * (candidates.length - taken));
    marked[candidates[other]!] = 1;
    candidates[other] = candidates[taken]!;
  }
  return marked;
}

/** Marks the given share of all tokens: those of largest covariance, at least one. */
export function markForKlCov(tokens: BatchTokens, { klCovRatio }: LossSettings): Uint8Array {
  const covariances = covariancesOf(tokens);
  const { length } = covariances;
  const marked = new Uint8Array(length);
  const count = Math.min(Math.max(1, Math.floor(length * klCovRatio)), length);
  for (const token of largestPositions(covariances, count)) marked[token] = 1;
  return marked;
}

/** `[N]` `(A - mean A)(lp - mean lp)` */
function covariancesOf(tokens: BatchTokens): Float64Array {
  const [advantageMean, logprobMean] = [mean(tokens.advantages), mean(tokens.logprobs)];
  const covariances = new Float64Array(tokens.advantages.length);
  eachToken(tokens, (t, logprob, _old, advantage) => {
    covariances[t] = (advantage - advantageMean) * (logprob - logprobMean);
  });
  return covariances;
}
