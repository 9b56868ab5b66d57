/**
 * Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage rise together make the entropy
 * collapse. Clip-Cov removes the gradient of some of them; KL-Cov penalizes the worst for leaving the old policy.
 */
import { z } from "zod";
import { uniforms } from "../../random.ts";
import { mean } from "../../statistics.ts";
import { type BatchTokens, clamp, defineLoss, eachToken, emptyValues } from "./definition.ts";
import { largestPositions } from "./largest.ts";
import { clippedSurrogate } from "./ppo.ts";

/** PPO's clip; the marked tokens have neither loss nor gradient. `clipped` counts them. */
export const clipCov = defineLoss({
  formula:
    "PPO's; as many tokens as the share `clip_cov_ratio` of all tokens get no gradient, drawn from those whose covariance of A and lp is between `clip_cov_lb` and `clip_cov_ub`",
  source: "2505.22617",
  ratio: "clipped",
  constants: {
    clip_cov_ratio: z
      .number()
      .min(0)
      .max(1)
      .default(0.0002)
      .describe("clip_cov: fraction of tokens excluded from the loss."),
    clip_cov_lb: z
      .number()
      .default(1)
      .describe("clip_cov: only tokens whose log-probability and advantage have a larger covariance can be excluded."),
    clip_cov_ub: z.number().default(5).describe("clip_cov: only tokens with a smaller covariance can be excluded."),
  },
  evaluate(tokens, settings) {
    const values = clippedSurrogate(tokens, settings);
    values.clipped = 0;
    tokens.marked?.forEach((mark, t) => {
      if (mark === 0) return;
      values.losses[t] = 0;
      values.slopes[t] = 0;
      values.clipped++;
    });
    return values;
  },
  /** The given share of all tokens, drawn from those whose covariance is between the bounds and that PPO does not clip. */
  mark(tokens, { clip_cov_ratio: ratio, clip_cov_lb: least, clip_cov_ub: most, low, high, seed }) {
    const [leastLog, mostLog] = [Math.log(low), Math.log(high)];
    const covariances = covariancesOf(tokens);
    const candidates: number[] = [];
    eachToken(tokens, (t, logprob, old, advantage) => {
      const covariance = covariances[t] ?? 0;
      if (!(covariance > least && covariance < most)) return;
      if (advantage > 0 ? logprob - old <= mostLog : logprob - old >= leastLog) candidates.push(t);
    });
    const marked = new Uint8Array(covariances.length);
    const wanted = Math.min(Math.max(Math.floor(ratio * marked.length), 1), candidates.length);
    const next = uniforms(seed);
    for (let taken = 0; taken < wanted; taken++) {
      const other = taken + Math.floor(next() * (candidates.length - taken));
      marked[candidates[other]!] = 1;
      candidates[other] = candidates[taken]!;
    }
    return marked;
  },
});

/** `-rA`, plus `ppo_kl_coef |ln r|` on the marked tokens. `kl` is the sum of |ln r|. */
export const klCov = defineLoss({
  formula:
    "`-rA`, plus `ppo_kl_coef` times `|lp - old|` on the share `kl_cov_ratio` of tokens with the largest covariance",
  source: "2505.22617",
  ratio: "unclipped",
  constants: {
    kl_cov_ratio: z
      .number()
      .min(0)
      .max(1)
      .default(0.0002)
      .describe("kl_cov: fraction of tokens that receive the KL term: those with the largest covariance."),
    ppo_kl_coef: z.number().min(0).default(0.1).describe("kl_cov: weight of the KL term."),
  },
  ratioConstants: ["ppo_kl_coef"],
  evaluate(tokens, { ppo_kl_coef: coefficient, logRatioLimit }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      const loss = -Math.exp(held) * advantage;
      const penalty = tokens.marked?.[t] === 1 ? coefficient : 0;
      values.losses[t] = loss + penalty * Math.abs(logRatio);
      values.slopes[t] = (held === logRatio ? loss : 0) + penalty * Math.sign(logRatio);
      values.kl += Math.abs(logRatio);
    });
    return values;
  },
  /** The given share of all tokens: those of largest covariance, at least one. */
  mark(tokens, { kl_cov_ratio: ratio }) {
    const covariances = covariancesOf(tokens);
    const { length } = covariances;
    const marked = new Uint8Array(length);
    const count = Math.min(Math.max(1, Math.floor(length * ratio)), length);
    for (const token of largestPositions(covariances, count)) marked[token] = 1;
    return marked;
  },
});

/** `[N]` `(A - mean A)(lp - mean lp)` */
function covariancesOf(tokens: BatchTokens): Float64Array {
  const [advantageMean, logprobMean] = [mean(tokens.advantages), mean(tokens.logprobs)];
  const covariances = new Float64Array(tokens.advantages.length);
  eachToken(tokens, (t, logprob, _old, advantage) => {
    covariances[t] = (advantage - advantageMean) * (logprob - logprobMean);
  });
  return covariances;
}
