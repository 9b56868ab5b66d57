/** The actor's loss: policy term, KL to the reference, entropy bonus. A pure function of token outputs. */
import { RunError } from "../../errors.ts";
import type { MetricSums } from "../../statistics.ts";
import { rowsOf, selectSequences } from "../../trajectories/batch.ts";
import type { TokenOutputs, TrainingBatch } from "../../trajectories/types.ts";
import { klEstimators } from "../kl/kl-estimators.ts";
import { highEntropyCount } from "../losses/largest.ts";
import type { Loss, LossValue, OutputGradient } from "../types.ts";
import { matchOutputs } from "./aggregation.ts";
import { hostedLoss } from "./hosted-loss.ts";
import {
  hasEntropyBonus,
  hasSecondBound,
  highEntropyTokens,
  isCoupled,
  isCustom,
  lossOf,
  needsReference,
  type PolicyLossOptions,
  readsEntropy,
  selectsByEntropy,
  trainsWithoutAdvantage,
  weightOf,
} from "./loss-choice.ts";
import { type PolicyTerm, policyTerm, type TermSums, type WeightedSequence } from "./policy-term.ts";

/**
 * `L = sum of w (policy + kl.weight * KL - entropyCoeff * H)` over trained tokens, `w` by `aggMode` and `batch.totals`. The
 * policy term is multiplied by `batch.rolloutWeights`, if present. Ratios are relative to `batch.oldLogprobs`; without
 * them every ratio is 1.
 *
 * Metrics (verl's names): `actor/pg_loss`, `actor/pg_clipfrac`, `actor/pg_clipfrac_lower` (dual clip, gmpo),
 * `actor/kl_loss`, `actor/entropy_loss` of the whole batch, including what `lossPart` left out; `actor/ppo_kl` over the
 * evaluated tokens. The counts of all evaluations of a batch add up to those of one batch.
 *
 * @param watch called with each evaluation
 * @throws RunError when a KL term or a custom loss has no reference log-probabilities
 */
export function policyLoss(batch: TrainingBatch, options: PolicyLossOptions, watch?: WatchTerm): Loss {
  if (batch.referenceLogprobs === undefined && needsReference(options)) {
    throw new RunError("the loss needs log-probabilities of the reference policy, but the batch has none");
  }
  const term = policyTerm(batch, options);
  return {
    name: isCustom(options.lossFn) ? options.lossFn.name : options.lossFn,
    outputs: readsEntropy(options) ? { entropy: true } : {},
    coupled: isCoupled(options),
    hosted: () => hostedLoss(batch, options),
    evaluate: (outputs, sequences) => evaluate(batch, options, term, outputs, sequences, watch),
  };
}

/** Indices of the sequences that can contribute a gradient; the others need no forward and no backward. */
export function informativeSequences(batch: TrainingBatch, options: PolicyLossOptions): Int32Array {
  const always = options.trainsAll || options.kl !== undefined || hasEntropyBonus(options) || isCoupled(options);
  const rows = rowsOf(batch.advantages, batch.offsets);
  const informative = rows.flatMap((advantages, sequence) => {
    const all = always || trainsWithoutAdvantage(lossOf(options, batch.roles[sequence]!), options);
    return advantages.some((advantage) => all || advantage !== 0) ? [sequence] : [];
  });
  return Int32Array.from(informative);
}

/**
 * The minibatch without the sequences that cannot contribute a gradient: those without a trained token and, unless the
 * loss has a KL term, an entropy bonus or needs the whole batch, those whose advantages are all zero. `totals` still
 * counts them.
 *
 * @example
 * const part = lossPart(minibatch, options);
 * await policy.forwardBackward(part.sequences, policyLoss(part, options));
 */
export function lossPart(minibatch: TrainingBatch, options: PolicyLossOptions): TrainingBatch {
  const part = selectSequences(minibatch, informativeSequences(minibatch, options));
  if (!selectsByEntropy(options)) return part;
  return { ...part, totals: { ...part.totals, highEntropyTokens: highEntropyTokens(minibatch, options) } };
}

/** `slopes`: the gradient of the policy term alone, in the layout of the outputs. */
export type WatchTerm = (outputs: TokenOutputs, sequences: Int32Array, slopes: Float32Array) => void;

/** Weighted losses of some sequences, and plain sums over their tokens. */
interface Sums extends TermSums {
  referenceKl: number;
  entropy: number;
}

function evaluate(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  term: PolicyTerm,
  outputs: TokenOutputs,
  sequences: Int32Array,
  watch?: WatchTerm,
): LossValue {
  const { kl, entropyCoeff = 0 } = options;
  const evaluated = weightedSequences(batch, options, outputs, sequences);
  // Gradient checks evaluate losses in float64.
  const emptyGradient = () => new (outputs.logprobs.constructor as Float32ArrayConstructor)(outputs.logprobs.length);
  const gradient: OutputGradient = { logprobs: emptyGradient() };
  if (hasEntropyBonus(options)) gradient.entropy = emptyGradient();
  const sums: Sums = { ...term(outputs, evaluated, gradient.logprobs), referenceKl: 0, entropy: 0 };
  watch?.(outputs, sequences, gradient.logprobs);
  const estimateKl = kl && klEstimators[kl.estimator];
  for (const { loss, from, start, trained } of evaluated) {
    const end = start + trained;
    const weight = weightOf(options, loss, trained, batch.totals);
    if (kl && estimateKl && batch.referenceLogprobs !== undefined) {
      for (let t = 0; t < trained; t++) {
        const { value, slope } = estimateKl(outputs.logprobs[start + t]! - batch.referenceLogprobs[from + t]!);
        sums.referenceKl += weight * value;
        gradient.logprobs[start + t]! += kl.weight * weight * slope;
      }
    }
    if (gradient.entropy !== undefined && outputs.entropy !== undefined) {
      for (const entropy of outputs.entropy.subarray(start, end)) sums.entropy += weight * entropy;
      gradient.entropy.fill(-weight * entropyCoeff, start, end);
    }
  }
  return {
    loss: sums.loss + (kl?.weight ?? 0) * sums.referenceKl - entropyCoeff * sums.entropy,
    gradient,
    metrics: metricsOf(batch, options, sums, evaluated),
  };
}

/** The sequences that have trained tokens, with the weight of each token in the policy term. */
function weightedSequences(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
): WeightedSequence[] {
  const totals = policyTotalsOf(batch, options);
  return matchOutputs(batch.offsets, outputs.offsets, sequences)
    .filter(({ trained }) => trained > 0)
    .map((matched) => {
      const loss = lossOf(options, batch.roles[matched.sequence]!);
      const count = highEntropyCount(matched.trained, options.highEntropyRatio ?? 1);
      return { ...matched, loss, count, weight: weightOf(options, loss, count, totals) };
    });
}

function policyTotalsOf(batch: TrainingBatch, options: PolicyLossOptions): TrainingBatch["totals"] {
  if (!selectsByEntropy(options)) return batch.totals;
  return { ...batch.totals, tokens: batch.totals.highEntropyTokens ?? highEntropyTokens(batch, options) };
}

/**
 * The count of a whole-batch metric is the share of the batch's tokens that is evaluated here, so the counts of all
 * micro-batches add up to 1.
 */
function metricsOf(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  sums: Sums,
  evaluated: readonly WeightedSequence[],
): MetricSums {
  const evaluatedTokens = evaluated.reduce((total, { trained }) => total + trained, 0);
  if (evaluatedTokens === 0) return {};
  const share = evaluatedTokens / batch.advantages.length;
  const ofBatch = (sum: number) => ({ sum, count: share });
  const { tokens } = policyTotalsOf(batch, options);
  const metrics: MetricSums = {
    "actor/pg_loss": ofBatch(sums.loss),
    "actor/pg_clipfrac": ofBatch(sums.clipped / tokens),
  };
  if (hasSecondBound(options)) {
    metrics["actor/pg_clipfrac_lower"] = ofBatch(sums.capped / tokens);
  }
  metrics["actor/ppo_kl"] = { sum: sums.kl, count: evaluated.reduce((total, { count }) => total + count, 0) };
  if (options.kl) metrics["actor/kl_loss"] = ofBatch(sums.referenceKl);
  if (hasEntropyBonus(options)) metrics["actor/entropy_loss"] = ofBatch(sums.entropy);
  return metrics;
}
