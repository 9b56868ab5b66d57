/** The actor's loss: policy term, KL to the reference, entropy bonus. A pure function of token outputs. */
import { RunError } from "../errors.ts";
import { selectSequences } from "../trajectories/batch.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import { tokenWeight } from "./aggregation.ts";
import { hostedLoss } from "./hosted-loss.ts";
import { klEstimators } from "./kl.ts";
import {
  choosesByEntropy,
  definitionOf,
  hasEntropyBonus,
  highEntropyTokens,
  isCoupled,
  isCustom,
  lossOf,
  needsReference,
  type PolicyLossOptions,
  readsEntropy,
  trainsWithoutAdvantage,
} from "./loss-choice.ts";
import { highEntropyCount } from "./losses/high-entropy.ts";
import { type Place, type PolicyTerm, policyTerm, type TermSums } from "./policy-term.ts";
import type { Loss, LossValue } from "./types.ts";

export { needsReference, type PolicyLossOptions, readsEntropy, readsSampler } from "./loss-choice.ts";

/**
 * `L = sum of w (policy + klBeta * KL - entropyCoeff * H)` over trained tokens, `w` by `aggMode` and `batch.totals`;
 * the policy term times `batch.rolloutWeights`, where the batch has them. Ratios are against `batch.oldLogprobs`;
 * without them against the current log-probabilities, detached: the ratio is then 1.
 *
 * Metrics (verl's names): `actor/pg_loss`, `actor/pg_clipfrac`, `actor/pg_clipfrac_lower` (dual clip, gmpo),
 * `actor/kl_loss`, `actor/entropy_loss` of the whole batch with what `lossPart` left out; `actor/ppo_kl` over the
 * tokens evaluated. Summed over the evaluations of a batch, each count is that of one batch.
 *
 * @throws RunError when a KL term or a custom loss has no reference log-probabilities
 */
export function policyLoss(batch: TrainingBatch, options: PolicyLossOptions): Loss {
  if (batch.referenceLogprobs === undefined && needsReference(options)) {
    throw new RunError("the loss reads log-probabilities of the reference policy, and the batch has none");
  }
  const term = policyTerm(batch, options);
  return {
    name: isCustom(options.lossFn) ? options.lossFn.name : options.lossFn,
    outputs: readsEntropy(options) ? { entropy: true } : {},
    ...(isCoupled(options) ? { coupled: true as const } : {}),
    hosted: () => hostedLoss(batch, options),
    evaluate: (outputs, sequences) => evaluate(batch, options, term, outputs, sequences),
  };
}

/** Indices of the sequences that can contribute a gradient; the others need no forward and no backward. */
export function informativeSequences(batch: TrainingBatch, options: PolicyLossOptions): Int32Array {
  const always = options.klBeta > 0 || hasEntropyBonus(options) || isCoupled(options);
  return Int32Array.from(batch.sequences.keys()).filter((index) => {
    const own = batch.advantages.subarray(batch.offsets[index]!, batch.offsets[index + 1]!);
    if (always || trainsWithoutAdvantage(lossOf(options, batch.roles[index]!), options)) return own.length > 0;
    return own.some((advantage) => advantage !== 0);
  });
}

/**
 * What a step is taken on: the minibatch without the sequences that cannot contribute a gradient. With a KL term or an
 * entropy bonus, and with losses that look at the whole batch, those are the ones without a trained token; else also
 * those without an advantage other than zero. They stay counted in `totals`.
 *
 * @example
 * const part = lossPart(minibatch, options);
 * await policy.forwardBackward(part.sequences, policyLoss(part, options));
 */
export function lossPart(minibatch: TrainingBatch, options: PolicyLossOptions): TrainingBatch {
  const part = selectSequences(minibatch, informativeSequences(minibatch, options));
  if (!choosesByEntropy(options)) return part;
  return { ...part, totals: { ...part.totals, highEntropyTokens: highEntropyTokens(minibatch, options) } };
}

/** Weighted losses of some sequences, and plain sums over their tokens. */
interface Sums extends TermSums {
  referenceKl: number;
  entropy: number;
  /** Tokens of the policy term, and of the others. */
  policyTokens: number;
  tokens: number;
}

function evaluate(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  term: PolicyTerm,
  outputs: TokenOutputs,
  sequences: Int32Array,
): LossValue {
  const { klBeta, entropyCoeff = 0 } = options;
  const places = placesOf(batch, options, outputs, sequences);
  // Of the precision of the outputs.
  const emptyGradient = () => new (outputs.logprobs.constructor as Float32ArrayConstructor)(outputs.logprobs.length);
  const byLogprob = emptyGradient();
  const byEntropy = hasEntropyBonus(options) ? emptyGradient() : null;
  const sums: Sums = {
    ...term(outputs, sequences, places, byLogprob),
    ...{ referenceKl: 0, entropy: 0, policyTokens: 0, tokens: 0 },
  };
  for (const { sequence, start, trained, count } of places) {
    const from = batch.offsets[sequence]!;
    sums.policyTokens += count;
    sums.tokens += trained;
    if (klBeta === 0 && byEntropy === null) continue;
    const weight = weightOf(batch, options, sequence, trained, batch.totals);
    if (klBeta > 0) {
      const estimate = klEstimators[options.klEstimator];
      for (let t = 0; t < trained; t++) {
        const { value, slope } = estimate(outputs.logprobs[start + t]! - batch.referenceLogprobs![from + t]!);
        sums.referenceKl += weight * value;
        byLogprob[start + t]! += klBeta * weight * slope;
      }
    }
    if (byEntropy !== null) {
      for (let token = start; token < start + trained; token++) sums.entropy += weight * outputs.entropy![token]!;
      byEntropy.fill(-weight * entropyCoeff, start, start + trained);
    }
  }
  return {
    loss: sums.loss + klBeta * sums.referenceKl - entropyCoeff * sums.entropy,
    gradient: { logprobs: byLogprob, ...(byEntropy === null ? {} : { entropy: byEntropy }) },
    metrics: metricsOf(batch, options, sums),
  };
}

/** The sequences that have trained tokens, with the weights of the policy term. */
function placesOf(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
): Place[] {
  const totals = policyTotalsOf(batch, options);
  const places: Place[] = [];
  sequences.forEach((sequence, index) => {
    const start = outputs.offsets[index]!;
    const trained = batch.offsets[sequence + 1]! - batch.offsets[sequence]!;
    if (outputs.offsets[index + 1]! - start !== trained) {
      throw new RunError(`the outputs of sequence ${sequence} do not fit its ${trained} trained tokens`);
    }
    if (trained === 0) return;
    const count = highEntropyCount(trained, options.highEntropyRatio ?? 1);
    places.push({ sequence, start, trained, count, weight: weightOf(batch, options, sequence, count, totals) });
  });
  return places;
}

/** @param tokens of the sequence */
function weightOf(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  sequence: number,
  tokens: number,
  totals: TrainingBatch["totals"],
): number {
  const { aggMode, lossScale, countEps } = options;
  const loss = lossOf(options, batch.roles[sequence]!);
  const mode = aggMode ?? (isCustom(loss) ? undefined : definitionOf(loss).aggMode) ?? "token-mean";
  const scale = { ...(lossScale === undefined ? {} : { lossScale }), ...(countEps === undefined ? {} : { countEps }) };
  return tokenWeight(mode, tokens, totals, scale);
}

function policyTotalsOf(batch: TrainingBatch, options: PolicyLossOptions): TrainingBatch["totals"] {
  if (!choosesByEntropy(options)) return batch.totals;
  return { ...batch.totals, tokens: batch.totals.highEntropyTokens ?? highEntropyTokens(batch, options) };
}

/** The counts of the figures of the whole batch are shares that add up to 1 when all its sequences are evaluated. */
function metricsOf(batch: TrainingBatch, options: PolicyLossOptions, sums: Sums): LossValue["metrics"] {
  if (sums.tokens === 0) return {};
  const share = sums.tokens / batch.offsets.at(-1)!;
  const ofBatch = (sum: number) => ({ sum, count: share });
  const { tokens } = policyTotalsOf(batch, options);
  const hasLower = (options.dualClip ?? null) !== null || options.lossFn === "gmpo";
  return {
    "actor/pg_loss": ofBatch(sums.loss),
    "actor/pg_clipfrac": ofBatch(sums.clipped / tokens),
    ...(hasLower ? { "actor/pg_clipfrac_lower": ofBatch(sums.capped / tokens) } : {}),
    "actor/ppo_kl": { sum: sums.kl, count: sums.policyTokens },
    ...(options.klBeta > 0 ? { "actor/kl_loss": ofBatch(sums.referenceKl) } : {}),
    ...(hasEntropyBonus(options) ? { "actor/entropy_loss": ofBatch(sums.entropy) } : {}),
  };
}
