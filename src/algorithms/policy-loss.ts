/** The actor's loss: policy term, KL to the reference, entropy bonus. A pure function of token outputs, in float64. */
import { RunError } from "../errors.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import { type AggregationMode, tokenWeight } from "./aggregation.ts";
import { type KlEstimatorName, klEstimators } from "./kl.ts";
import { importanceSampling } from "./losses/importance-sampling.ts";
import { ppo } from "./losses/ppo.ts";
import type { RatioBounds, TokenLoss } from "./losses/token-loss.ts";
import type { Loss, LossValue } from "./types.ts";

export const tokenLosses = { ppo, importance_sampling: importanceSampling } as const satisfies Record<
  string,
  TokenLoss
>;

export type PolicyLossName = keyof typeof tokenLosses;

export interface PolicyLossOptions {
  lossFn: PolicyLossName;
  /** The ratio is clipped below at `1 - epsClip`. */
  epsClip: number;
  /** The ratio is clipped above at `1 + epsClipHigh`; `null` is `epsClip`. */
  epsClipHigh: number | null;
  /** Dual clip: cap of the loss where the advantage is negative; above 1. Absent or `null` is off. */
  dualClip?: number | null;
  aggMode: AggregationMode;
  /** Divisor of `seq-mean-token-sum-norm`, e.g. the longest reply allowed. */
  lossScale?: number;
  /** Weight of the KL to the reference; above 0 the batch must have `referenceLogprobs`. */
  klBeta: number;
  klEstimator: KlEstimatorName;
  /** Weight of the entropy bonus; the engine must then give entropies. */
  entropyCoeff?: number;
}

/** As verl: a ratio beyond e^20 says that something is broken, not how much. */
const logRatioLimit = 20;

/**
 * `L = sum of w (policy + klBeta * KL - entropyCoeff * H)` over trained tokens, `w` by `aggMode` and `batch.totals`.
 * Ratios are against `batch.oldLogprobs`; without them against the current log-probabilities, detached: the ratio is
 * then 1 and the gradient of a token `-w A`.
 *
 * Metrics (verl's names): `actor/pg_loss`, `actor/pg_clipfrac`, `actor/pg_clipfrac_lower` (dual clip),
 * `actor/kl_loss`, `actor/entropy_loss` of the whole batch with what `informativeSequences` left out;
 * `actor/ppo_kl` over the tokens evaluated. Summed over the evaluations of a batch, each count is that of one batch.
 *
 * @throws RunError when a KL term has no reference log-probabilities
 */
export function policyLoss(batch: TrainingBatch, options: PolicyLossOptions): Loss {
  if (options.klBeta > 0 && batch.referenceLogprobs === undefined) {
    throw new RunError("the loss has a KL term but the batch has no log-probabilities of the reference policy");
  }
  return {
    name: options.lossFn,
    outputs: hasEntropyBonus(options) ? { entropy: true } : {},
    evaluate: (outputs, sequences) => evaluate(batch, options, outputs, sequences),
  };
}

/**
 * Indices of the sequences that can contribute a gradient: with a KL term or an entropy bonus all that have a trained
 * token, else those with an advantage other than zero. The others need no forward and no backward.
 *
 * @example
 * const part = selectSequences(minibatch, informativeSequences(minibatch, options)); // keeps minibatch.totals
 */
export function informativeSequences(
  { sequences, offsets, advantages }: TrainingBatch,
  options: Pick<PolicyLossOptions, "klBeta" | "entropyCoeff">,
): Int32Array {
  const always = options.klBeta > 0 || hasEntropyBonus(options);
  return Int32Array.from(sequences.keys()).filter((index) => {
    const own = advantages.subarray(offsets[index]!, offsets[index + 1]!);
    return always ? own.length > 0 : own.some((advantage) => advantage !== 0);
  });
}

function hasEntropyBonus({ entropyCoeff = 0 }: Pick<PolicyLossOptions, "entropyCoeff">): boolean {
  return entropyCoeff !== 0;
}

/** Weighted losses of some sequences, and plain sums over their tokens. */
interface Sums {
  policy: number;
  kl: number;
  entropy: number;
  clipped: number;
  capped: number;
  logRatio: number;
  tokens: number;
}

function evaluate(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
): LossValue {
  const gradient = {
    logprobs: new Float32Array(outputs.logprobs.length),
    ...(hasEntropyBonus(options) ? { entropy: new Float32Array(outputs.logprobs.length) } : {}),
  };
  const sums: Sums = { policy: 0, kl: 0, entropy: 0, clipped: 0, capped: 0, logRatio: 0, tokens: 0 };
  sequences.forEach((sequence, row) => {
    const trained = batch.offsets[sequence + 1]! - batch.offsets[sequence]!;
    if (outputs.offsets[row + 1]! - outputs.offsets[row]! !== trained) {
      throw new RunError(`the outputs of sequence ${sequence} do not fit its ${trained} trained tokens`);
    }
    addSequence(batch, options, outputs, sequence, outputs.offsets[row]!, gradient, sums);
  });
  const { klBeta, entropyCoeff = 0 } = options;
  const loss = sums.policy + klBeta * sums.kl - entropyCoeff * sums.entropy;
  return { loss, gradient, metrics: metricsOf(batch, options, sums) };
}

/** Adds one sequence, whose outputs start at `start`, to the gradient and the sums. */
function addSequence(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequence: number,
  start: number,
  gradient: { logprobs: Float32Array; entropy?: Float32Array },
  sums: Sums,
): void {
  const { klBeta, entropyCoeff = 0 } = options;
  const bounds: RatioBounds = {
    low: 1 - options.epsClip,
    high: 1 + (options.epsClipHigh ?? options.epsClip),
    dual: options.dualClip ?? null,
    logRatioLimit,
  };
  const tokenLoss = tokenLosses[options.lossFn];
  const klEstimator = klEstimators[options.klEstimator];
  const from = batch.offsets[sequence]!;
  const trained = batch.offsets[sequence + 1]! - from;
  const scale = options.lossScale === undefined ? {} : { lossScale: options.lossScale };
  const weight = tokenWeight(options.aggMode, trained, batch.totals, scale);
  for (let token = 0; token < trained; token++) {
    const logprob = outputs.logprobs[start + token]!;
    const logRatio = batch.oldLogprobs === undefined ? 0 : logprob - batch.oldLogprobs[from + token]!;
    const policy = tokenLoss(logRatio, batch.advantages[from + token]!, bounds);
    let slope = policy.slope;
    sums.policy += weight * policy.loss;
    sums.clipped += Number(policy.clipped);
    sums.capped += Number(policy.capped);
    sums.logRatio += Math.min(Math.max(logRatio, -logRatioLimit), logRatioLimit);
    if (klBeta > 0) {
      const kl = klEstimator(logprob - batch.referenceLogprobs![from + token]!);
      sums.kl += weight * kl.value;
      slope += klBeta * kl.slope;
    }
    gradient.logprobs[start + token] = weight * slope;
    if (gradient.entropy !== undefined) {
      sums.entropy += weight * outputs.entropy![start + token]!;
      gradient.entropy[start + token] = -weight * entropyCoeff;
    }
  }
  sums.tokens += trained;
}

/** The counts of the figures of the whole batch are shares that add up to 1 when all its sequences are evaluated. */
function metricsOf(batch: TrainingBatch, options: PolicyLossOptions, sums: Sums): LossValue["metrics"] {
  if (sums.tokens === 0) return {};
  const share = sums.tokens / batch.offsets.at(-1)!;
  const ofBatch = (sum: number) => ({ sum, count: share });
  return {
    "actor/pg_loss": ofBatch(sums.policy),
    "actor/pg_clipfrac": ofBatch(sums.clipped / batch.totals.tokens),
    ...((options.dualClip ?? null) === null
      ? {}
      : { "actor/pg_clipfrac_lower": ofBatch(sums.capped / batch.totals.tokens) }),
    "actor/ppo_kl": { sum: -sums.logRatio, count: sums.tokens },
    ...(options.klBeta > 0 ? { "actor/kl_loss": ofBatch(sums.kl) } : {}),
    ...(hasEntropyBonus(options) ? { "actor/entropy_loss": ofBatch(sums.entropy) } : {}),
  };
}
