/**
 * Policy losses, one definition each: formula, constants, slopes, names on engines. Adding one is a definition here
 * and a row in `policyLosses`.
 */
import { z } from "zod";
import { mean, ownValue, uniforms } from "../base/values.ts";
import {
  type BatchTokens,
  type ConstantsOf,
  clamp,
  clipBounds,
  defineLoss,
  type EngineLoss,
  eachToken,
  emptyValues,
  type LossSettings,
  largestPositions,
  type PolicyLossDefinition,
  type SequenceLoss,
  unbounded,
} from "./loss-definition.ts";

// PPO's clipped surrogate (arXiv 1707.06347) with optional dual clip (arXiv 1912.09729).

/** `max(-rA, -clip(r, low, high)A)`; for A < 0 at most `-clip_ratio_c * A`. The gradient is that of the branch selected. */
const ppo = defineLoss({
  aliases: ["vanilla"],
  formula: "`max(-rA, -clip(r, low, high)A)`; with `clip_ratio_c: 3` at most `-3A` where A < 0 (dual clip)",
  source: "1707.06347, 1912.09729",
  ratio: "clipped",
  /** Keys of `rllm.algorithm` itself. */
  constants: {
    clip_ratio_c: z
      .number()
      .gt(1)
      .nullable()
      .default(null)
      .describe("Dual-clip PPO: caps the loss of tokens with a negative advantage at this ratio; null is off.")
      .meta({ note: "verl's own default is 3." }),
  },
  ratioConstants: ["clip_ratio_c"],
  evaluate(tokens, settings) {
    const values = clippedSurrogate(tokens, settings);
    const { clip_ratio_c: dual } = settings;
    if (dual === null) return values;
    tokens.advantages.forEach((advantage, t) => {
      const cap = -dual * advantage;
      if (advantage >= 0 || !(values.losses[t]! > cap)) return;
      values.losses[t] = cap;
      values.slopes[t] = 0;
      values.capped++;
    });
    return values;
  },
  caps: ({ clip_ratio_c: dual }) => dual !== null,
  slopeAtOne: ({ low, high }) => (low <= 1 && high >= 1 ? 1 : undefined),
  onEngine({ clip_ratio_c: dual, ...settings }) {
    const { tinker, verl } = clipBounds(settings);
    return {
      // Tinker's ppo has no dual clip.
      ...(dual === null ? { tinker: { name: "ppo", config: tinker } } : {}),
      verl: { name: "vanilla", settings: { ...verl, clip_ratio_c: dual ?? unbounded } },
    };
  },
  served: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
});

/** PPO's loss without the dual clip. */
const clippedSurrogate: SequenceLoss = (tokens, { low, high, logRatioLimit }) => {
  const values = emptyValues(tokens);
  eachToken(tokens, (t, logprob, old, advantage) => {
    const logRatio = logprob - old;
    const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
    const ratio = Math.exp(held);
    const clips = (advantage > 0 && ratio > high) || (advantage < 0 && ratio < low);
    const loss = -(clips ? clamp(ratio, low, high) : ratio) * advantage;
    values.losses[t] = loss;
    values.slopes[t] = clips || held !== logRatio ? 0 : loss;
    values.kl -= held;
    if (clips) values.clipped++;
  });
  return values;
};

// CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so that every token keeps its gradient.

interface Bounds {
  low: number;
  high: number;
  cispo_low: number | null;
  cispo_high: number | null;
}

const boundsOf = ({ low, high, cispo_low, cispo_high }: Bounds) => ({
  low: cispo_low ?? low,
  high: cispo_high ?? high,
});

/** `-sg(clip(r, low, high)) A lp` */
const cispo = defineLoss({
  formula: "`-sg(clip(r)) A lp`; the default bounds are PPO's",
  source: "2506.13585",
  ratio: "clipped",
  detached: true,
  constants: {
    cispo_low: z
      .number()
      .min(0)
      .nullable()
      .default(null)
      .describe("cispo: lower bound of the importance weight; null is 1 - eps_clip."),
    cispo_high: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("cispo: upper bound of the importance weight; null is 1 + eps_clip_high."),
  },
  evaluate(tokens, settings) {
    const { low, high } = boundsOf(settings);
    const { logRatioLimit } = settings;
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const held = clamp(logprob - old, -logRatioLimit, logRatioLimit);
      const ratio = Math.exp(held);
      const slope = -clamp(ratio, low, high) * advantage;
      values.losses[t] = slope * logprob;
      values.slopes[t] = slope;
      values.kl -= held;
      if (advantage !== 0 && (ratio < low || ratio > high)) values.clipped++;
    });
    return values;
  },
  slopeAtOne(settings) {
    const { low, high } = boundsOf(settings);
    return Math.min(Math.max(1, low), high);
  },
  onEngine(settings) {
    const { tinker, verl } = clipBounds(boundsOf(settings));
    return { tinker: { name: "cispo", config: tinker }, verl: { name: "cispo", settings: verl } };
  },
  served: { clip_low_threshold: 0, clip_high_threshold: 4 },
});

// Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage rise together make the entropy
// collapse. Clip-Cov removes the gradient of some of them; KL-Cov penalizes the worst for leaving the old policy.

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

// CPGD (arXiv 2505.12504): the policy gradient clipped in log space, with a KL to the old policy ("policy drift").

/**
 * `-min(lp A, clip(lp, old + ln low, old + ln high) A) + drift (r - 1 - ln r)`; the drift term estimates
 * KL(old || current) from a token that the old policy sampled.
 */
const cpgd = defineLoss({
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

// Direct reward optimization (arXiv 2405.19107): the policy gradient with a squared distance to the old policy.

/** `-(lp A - beta/2 (lp - old)^2)` */
const dro = defineLoss({
  formula: "`-(lp A - dro_beta/2 (lp - old)^2)`",
  source: "2405.19107",
  ratio: "unclipped",
  constants: {
    dro_beta: z.number().min(0).default(0.05).describe("dro: weight of the quadratic term."),
  },
  ratioConstants: ["dro_beta"],
  evaluate(tokens, { dro_beta: beta }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      values.losses[t] = (beta / 2) * logRatio * logRatio - logprob * advantage;
      values.slopes[t] = beta * logRatio - advantage;
      values.kl -= logRatio;
    });
    return values;
  },
  trainsWithoutAdvantage: () => true,
  slopeAtOne: () => 1,
  onEngine({ dro_beta }, weight) {
    // The squared distance is not multiplied by the advantage, so all tokens need the same weight.
    if (weight === undefined) return undefined;
    const beta = dro_beta * weight;
    return {
      tinker: { name: "dro", config: { beta }, needsMask: true },
      // verl refuses 0.
      ...(beta > 0 ? { verl: { name: "dro", settings: { policy_loss: { dro_beta: beta } } } } : {}),
    };
  },
  served: { beta: null },
});

// GMPO (arXiv 2507.20673): a sequence's loss is its mean advantage times the geometric mean of its clipped ratios.

/** verl's value; with it a sequence without tokens needs no special case. */
const countEps = 1e-8;

/**
 * `-mean(A) exp(mean of x)`, `x` the log-ratio clipped to `[low - 1, high - 1]` on the side that the sign of A makes
 * pessimistic. Every token carries the sequence's loss; its weight must be the same on all of them (`weightsOf`).
 * `clipped` counts clips of positive, `capped` of negative advantages.
 */
export const gmpo = defineLoss({
  aliases: ["geo_mean"],
  formula: "`-mean(A) exp(mean of clipped lp - old)`; the clip is in log space",
  source: "2507.20673",
  ratio: "clipped",
  constants: {},
  evaluate(tokens, { low, high, logRatioLimit }) {
    const values = emptyValues(tokens);
    let sum = 0;
    let advantageSum = 0;
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const bounded = clamp(logRatio, low - 1, high - 1);
      const pessimistic = advantage > 0 ? bounded < logRatio : bounded > logRatio;
      if (bounded !== logRatio && advantage > 0) values.clipped++;
      if (bounded !== logRatio && advantage < 0) values.capped++;
      if (advantage !== 0) sum += pessimistic ? bounded : logRatio;
      values.slopes[t] = advantage !== 0 && !pessimistic ? 1 : 0;
      values.kl -= logRatio;
      advantageSum += advantage;
    });
    const count = tokens.logprobs.length;
    const mean = sum / (count + countEps);
    const loss = (-advantageSum / (count + countEps)) * Math.exp(clamp(mean, -logRatioLimit, logRatioLimit));
    const slope = Math.abs(mean) <= logRatioLimit ? loss * (count / (count + countEps)) : 0;
    values.losses.fill(loss);
    for (let t = 0; t < count; t++) values.slopes[t]! *= slope;
    return values;
  },
  aggMode: "seq-mean-token-mean",
  /** All tokens of a sequence get the geometric mean of its weights. */
  weightsOf(weights) {
    // A weight of 0 must not erase the sequence's other tokens through its logarithm.
    const sum = weights.reduce((total, weight) => total + Math.log(weight + 1e-10), 0);
    return weights.slice().fill(Math.exp(sum / (weights.length + countEps)));
  },
  caps: () => true,
});

// GSPO (arXiv 2507.18071): PPO's clip on the geometric mean of a sequence's ratios.

/** verl's value: the mean log-ratio is bounded by it, with zero gradient beyond. */
const maxMeanLogRatio = 10;

/**
 * `max(-sA, -clip(s, low, high)A)` with `s = exp(mean of the sequence's log-ratios)`. The gradient is that of GSPO-token,
 * where each token moves `s` on its ownValue, or goes through the mean. They are equal if a sequence has a single advantage.
 */
const gspo = defineLoss({
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

// The policy gradient weighted by the probability ratio; optionally without tokens that became much less likely.

/** `-rA`, and 0 where `exp(old) - exp(lp) > max_probability_drop`, the rule of prime-rl's loss against a teacher. */
const importanceSampling = defineLoss({
  formula: "`-rA`; with `max_probability_drop`, 0 for tokens whose probability fell by more",
  source: "",
  ratio: "unclipped",
  constants: {
    max_probability_drop: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe(
        "importance_sampling: tokens whose probability fell by more than this since the old policy have no gradient, as in prime-rl (0.2); null keeps all.",
      ),
  },
  ratioConstants: ["max_probability_drop"],
  evaluate(tokens, { logRatioLimit, max_probability_drop: maxDrop }) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      const logRatio = logprob - old;
      const held = clamp(logRatio, -logRatioLimit, logRatioLimit);
      values.kl -= held;
      if (maxDrop !== null && Math.exp(old) - Math.exp(logprob) > maxDrop) {
        values.clipped++;
        return;
      }
      const loss = -Math.exp(held) * advantage;
      values.losses[t] = loss;
      values.slopes[t] = held === logRatio ? loss : 0;
    });
    return values;
  },
  slopeAtOne: () => 1,
  onEngine: ({ max_probability_drop: maxDrop }) =>
    maxDrop === null
      ? {
          tinker: { name: "importance_sampling", config: {} },
          verl: {
            name: "vanilla",
            settings: { ...clipBounds({ low: 0, high: unbounded }).verl, clip_ratio_c: unbounded },
          },
        }
      : undefined,
  served: {},
});

// The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546); with weights as advantages it is cross-entropy.

/** `-lp A` */
const gpg = defineLoss({
  aliases: ["reinforce"],
  formula: "`-lp A`",
  source: "2504.02546",
  ratio: "none",
  constants: {},
  evaluate(tokens) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      values.losses[t] = -logprob * advantage;
      values.slopes[t] = -advantage;
      values.kl += old - logprob;
    });
    return values;
  },
  slopeAtOne: () => 1,
});

/** Tinker's name of the same loss. */
const crossEntropy: typeof gpg = { ...gpg, aliases: [], served: {} };

/** On engines, where advantages are the weights of tokens. */
export const weightedLikelihood: EngineLoss = {
  tinker: { name: "cross_entropy", config: {} },
  verl: { name: "gpg", settings: {} },
};

// Soft adaptive policy optimization (arXiv 2511.20347): a sigmoid gate instead of PPO's hard clip.

/** `-A 4/tau sigmoid(tau (r - 1))`, tau by the sign of A. */
const sapo = defineLoss({
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

// The policy losses by name, and what is derived from all of them.

export const policyLosses = {
  importance_sampling: importanceSampling,
  ppo,
  cispo,
  dro,
  gpg,
  cross_entropy: crossEntropy,
  gspo,
  gmpo,
  cpgd,
  sapo,
  clip_cov: clipCov,
  kl_cov: klCov,
} as const satisfies Record<string, PolicyLossDefinition>;

export type PolicyLossName = keyof typeof policyLosses;

export const definitionOf = (name: PolicyLossName): PolicyLossDefinition => policyLosses[name];

/** All losses under Hone's own names. */
export const namedLosses = Object.entries(policyLosses) as [PolicyLossName, PolicyLossDefinition][];

/** Hone's own name of a loss, given that or another system's name. */
export function lossByName(name: string): PolicyLossName | undefined {
  if (ownValue<PolicyLossDefinition>(policyLosses, name) !== undefined) return name as PolicyLossName;
  return namedLosses.find(([, { aliases }]) => aliases?.includes(name))?.[0];
}

/** Every name of every loss. */
export const lossNames: readonly string[] = namedLosses.flatMap(([name, { aliases = [] }]) => [name, ...aliases]);

type Both<Union> = (Union extends unknown ? (one: Union) => void : never) extends (all: infer All) => void
  ? All
  : never;
type Shapes = (typeof policyLosses)[PolicyLossName]["constants"];

/** The constants of all losses by their names in the configuration. */
export type LossConstants = ConstantsOf<Both<Shapes>>;

/** The schema of the constants that are keys of `rllm.algorithm.policy_loss`: those of all losses but ppo. */
export const constantSchemas = Object.assign(
  {},
  ...namedLosses.filter(([name]) => name !== "ppo").map(([, { constants }]) => constants),
) as Both<Exclude<Shapes, typeof ppo.constants>>;

/** The default of `eps_clip`. */
export const epsClip = 0.2;

/** Defaults of the papers or, where a paper gives none, of the implementations in use. */
export const lossDefaults: LossSettings & LossConstants = {
  low: 1 - epsClip,
  high: 1 + epsClip,
  // verl's value.
  logRatioLimit: 20,
  seed: 0,
  ...(Object.fromEntries(
    namedLosses.flatMap(([, { constants }]) =>
      Object.entries(constants).map(([name, schema]) => [name, (schema as z.ZodType).parse(undefined)]),
    ),
  ) as LossConstants),
};
