/**
 * The policy's loss of a batch: which loss each role has, how token losses become one number, KL and entropy terms,
 * and the same loss by name on engines that compute it.
 */
import { RunError } from "../base/errors.ts";
import { concatenate, type MetricSums, ownValue } from "../base/values.ts";
import { countsOf, rowsOf, selectSequences } from "../trajectories/batch.ts";
import type { BatchTotals, TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";
import { type KlTerm, klEstimators } from "./kl.ts";
import {
  highEntropyCount,
  type LossSettings,
  type LossValues,
  largestPositions,
  type SequenceTokens,
} from "./loss-definition.ts";
import {
  definitionOf,
  type LossConstants,
  lossDefaults,
  type PolicyLossName,
  weightedLikelihood,
} from "./policy-losses.ts";
import type { HostedLoss, Loss, LossValue, OutputGradient } from "./types.ts";

// How token losses become one number: where the tokens of each sequence are, and their weight, which is constant
// within a sequence.

export interface AggregationOptions {
  /** Divisor of `seq-mean-token-sum-norm`; the default is the number of trained tokens of the longest sequence. */
  lossScale?: number;
  /** Added to a sequence's token count in `seq-mean-token-mean`, as verl does. */
  countEps?: number;
}

/**
 * @param trained trained tokens of the sequence, at least 1
 * @param totals denominators of the whole batch; because they are fixed, the parts of a batch add up to it
 */
type TokenWeight = (trained: number, totals: BatchTotals, options: AggregationOptions) => number;

/** The modes of verl's `agg_loss`. They are called only for batches with trained tokens, so no divisor is 0. */
export const tokenWeights = {
  /** Every token of the batch counts the same. */
  "token-mean": (_trained, totals) => 1 / totals.tokens,
  /** Sum over a sequence's tokens, mean over sequences. */
  "seq-mean-token-sum": (_trained, totals) => 1 / totals.sequences,
  /** Mean over a sequence's tokens, mean over sequences. */
  "seq-mean-token-mean": (trained, totals, { countEps = 1e-8 }) => 1 / ((trained + countEps) * totals.sequences),
  /** Sum over a sequence's tokens divided by a constant (Dr. GRPO), mean over sequences. */
  "seq-mean-token-sum-norm": (_trained, totals, { lossScale }) =>
    1 / ((lossScale ?? totals.longest) * totals.sequences),
} as const satisfies Record<string, TokenWeight>;

export type AggregationMode = keyof typeof tokenWeights;

/** The weight of each trained token of a sequence in the batch's loss. */
export function tokenWeight(
  mode: AggregationMode,
  trained: number,
  totals: BatchTotals,
  options: AggregationOptions = {},
): number {
  const weigh: TokenWeight = tokenWeights[mode];
  return trained === 0 ? 0 : weigh(trained, totals, options);
}

/** The trained tokens of a sequence, in a batch and in an engine's outputs. */
export interface MatchedSequence {
  /** Index in the batch. */
  sequence: number;
  /** Number of trained tokens. */
  trained: number;
  /** Index of the first of them in the batch's arrays. */
  from: number;
  /** Index of the first of them in the outputs. */
  start: number;
}

/**
 * @param sequences indices in the batch of the sequences that the outputs belong to
 * @throws RunError if the outputs of a sequence have another length than its trained tokens
 */
export function matchOutputs(
  batchOffsets: Int32Array,
  outputOffsets: Int32Array,
  sequences: Int32Array,
): MatchedSequence[] {
  return Array.from(sequences, (sequence, index) => {
    const [from = 0, end = 0] = batchOffsets.subarray(sequence, sequence + 2);
    const [start = 0, outputEnd = 0] = outputOffsets.subarray(index, index + 2);
    const trained = end - from;
    if (outputEnd - start === trained) return { sequence, trained, from, start };
    throw new RunError(
      `the engine returned ${outputEnd - start} outputs for sequence ${sequence}, which has ${trained} trained tokens`,
    );
  });
}

// Which loss trains a sequence, and what the selected losses need.

export interface PolicyLossOptions {
  lossFn: PolicyLossName | CustomLoss;
  /** Other losses for the sequences of some roles. */
  lossFnByRole?: Readonly<Record<string, PolicyLossName | CustomLoss>>;
  /** The ratio is clipped below at `1 - epsClip`. */
  epsClip: number;
  /** The ratio is clipped above at `1 + epsClipHigh`; `null` uses `epsClip`. */
  epsClipHigh: number | null;
  /** `null` aggregates as the loss's authors do: by sequence or by token. */
  aggMode: AggregationMode | null;
  /** Divisor of `seq-mean-token-sum-norm`, e.g. the longest reply allowed. */
  lossScale?: number;
  /** Added to token counts in `seq-mean-token-mean`. */
  countEps?: number;
  /** The KL to the reference, for which the batch must have `referenceLogprobs`. */
  kl?: KlTerm;
  /** Weight of the entropy bonus; if it is not 0 the engine must return entropies. */
  entropyCoeff?: number;
  /** Share of each sequence's tokens, those of largest entropy, that are in the policy term; 1 keeps all. */
  highEntropyRatio?: number;
  /** A further term, such as a loss against a teacher, trains tokens without an advantage. */
  trainsAll?: boolean;
  /** Constants of single losses, and others that replace those of `lossDefaults`. */
  constants?: Partial<Omit<LossSettings, "low" | "high"> & LossConstants>;
}

type AnyLoss = PolicyLossOptions["lossFn"];

const isCustom = (loss: AnyLoss): loss is CustomLoss => typeof loss !== "string";

const allLosses = ({ lossFn, lossFnByRole = {} }: PolicyLossOptions): AnyLoss[] => [
  ...new Set([lossFn, ...Object.values(lossFnByRole)]),
];

const lossOf = ({ lossFn, lossFnByRole }: PolicyLossOptions, role: string): AnyLoss =>
  ownValue(lossFnByRole, role) ?? lossFn;

/** Whether a custom loss declares this input. */
const reads = (options: PolicyLossOptions, input: LossInput): boolean =>
  allLosses(options).some((loss) => isCustom(loss) && loss.inputs.includes(input));

/** Whether a loss needs the whole batch for a gradient. */
const isCoupled = (options: PolicyLossOptions): boolean =>
  allLosses(options).some((loss) => !isCustom(loss) && definitionOf(loss).mark !== undefined);

/** Whether a second bound, such as ppo's dual clip, can hold tokens. */
const hasSecondBound = (options: PolicyLossOptions): boolean =>
  allLosses(options).some((loss) => !isCustom(loss) && definitionOf(loss).caps?.(settingsOf(options)) === true);

const hasEntropyBonus = ({ entropyCoeff = 0 }: PolicyLossOptions): boolean => entropyCoeff !== 0;

const selectsByEntropy = ({ highEntropyRatio = 1 }: PolicyLossOptions): boolean => highEntropyRatio < 1;

const readsEntropy = (options: PolicyLossOptions): boolean =>
  hasEntropyBonus(options) || selectsByEntropy(options) || reads(options, "entropy");

/** Whether the loss reads the sampler's log-probabilities in addition to the old ones. */
export const readsSampler = (options: PolicyLossOptions): boolean => reads(options, "samplerLogprob");

/** Whether the loss compares with the reference policy. */
export const needsReference = (options: PolicyLossOptions): boolean =>
  options.kl !== undefined || reads(options, "referenceLogprob");

function settingsOf({ epsClip, epsClipHigh, constants }: PolicyLossOptions): LossSettings & LossConstants {
  return { ...lossDefaults, ...constants, low: 1 - epsClip, high: 1 + (epsClipHigh ?? epsClip) };
}

/** The weight of each of a sequence's `tokens` in the loss of the batch. */
function weightOf(options: PolicyLossOptions, loss: AnyLoss, tokens: number, totals: BatchTotals): number {
  const byAuthors = isCustom(loss) ? undefined : definitionOf(loss).aggMode;
  return tokenWeight(options.aggMode ?? byAuthors ?? "token-mean", tokens, totals, options);
}

/** Whether a token with advantage 0 may have a gradient; assumed of custom losses. */
const trainsWithoutAdvantage = (loss: AnyLoss, options: PolicyLossOptions): boolean =>
  isCustom(loss) || definitionOf(loss).trainsWithoutAdvantage?.(settingsOf(options)) === true;

/** Number of tokens of a batch that the high-entropy selection keeps. */
const highEntropyTokens = (
  { offsets }: Pick<TrainingBatch, "offsets">,
  { highEntropyRatio = 1 }: PolicyLossOptions,
): number => countsOf(offsets).reduce((tokens, count) => tokens + highEntropyCount(count, highEntropyRatio), 0);

// The policy term of a loss: evaluates each sequence's loss, applies the weights, writes the slopes.

type Floats = Float32Array | Float64Array;

/** A sequence with trained tokens, its loss, and the weight of its tokens. */
interface WeightedSequence extends MatchedSequence {
  loss: AnyLoss;
  /** Number of tokens in the policy term: all trained tokens, or those of largest entropy. */
  count: number;
  /** Weight of each token's loss. */
  weight: number;
}

interface TermSums {
  /** Weighted. */
  loss: number;
  clipped: number;
  capped: number;
  kl: number;
}

/** Writes `dL/dlogprob` of the sequences into `slopes` (in the layout of the outputs) and returns the loss. */
type PolicyTerm = (outputs: TokenOutputs, sequences: readonly WeightedSequence[], slopes: Floats) => TermSums;

function policyTerm(batch: TrainingBatch, options: PolicyLossOptions): PolicyTerm {
  const settings = settingsOf(options);
  const { rolloutWeights, oldLogprobs } = batch;

  return (outputs, sequences, slopes) => {
    const marks = markTokens(batch, options, outputs, sequences);
    const sums: TermSums = { loss: 0, clipped: 0, capped: 0, kl: 0 };
    for (const { loss, from, start, trained, count, weight } of sequences) {
      const positions = selectsByEntropy(options)
        ? largestPositions(
            Float64Array.from(required(outputs.entropy, "entropies").subarray(start, start + trained)),
            count,
          )
        : undefined;
      const ofOutputs = <A extends Floats | Uint8Array>(values: A) => pick(values, start, trained, positions);
      const ofBatch = <A extends Floats | Uint8Array>(values: A) => pick(values, from, trained, positions);

      const logprobs = ofOutputs(outputs.logprobs);
      const old = oldLogprobs === undefined ? logprobs : ofBatch(oldLogprobs);
      const tokens: SequenceTokens = { logprobs, old, advantages: ofBatch(batch.advantages) };
      if (marks !== undefined) tokens.marked = ofOutputs(marks);
      const values = isCustom(loss)
        ? customValues(loss, {
            logprob: () => logprobs,
            oldLogprob: () => old,
            advantage: () => tokens.advantages,
            logRatio: () => logprobs.map((logprob, t) => logprob - old[t]!),
            samplerLogprob: () => ofBatch(batch.samplerLogprobs),
            referenceLogprob: () => ofBatch(required(batch.referenceLogprobs, "reference log-probabilities")),
            entropy: () => ofOutputs(required(outputs.entropy, "entropies")),
          })
        : definitionOf(loss).evaluate(tokens, settings);

      const given = rolloutWeights?.subarray(from, from + trained);
      const whole = given && !isCustom(loss) ? definitionOf(loss).weightsOf?.(given) : undefined;
      const tokenWeights = whole ?? given;
      sums.loss += applyWeights(values, weight, tokenWeights && pick(tokenWeights, 0, trained, positions));
      sums.clipped += values.clipped;
      sums.capped += values.capped;
      sums.kl += values.kl;
      if (positions === undefined) slopes.set(values.slopes, start);
      positions?.forEach((position, t) => {
        slopes[start + position] = values.slopes[t]!;
      });
    }
    return sums;
  };
}

/** One sequence's tokens of an array over all tokens: all of them, or those at `positions`. */
function pick<A extends Floats | Uint8Array>(values: A, first: number, count: number, positions?: Int32Array): A {
  const own = values.subarray(first, first + count) as A;
  if (positions === undefined) return own;
  const chosen = own.slice(0, positions.length) as A;
  positions.forEach((position, t) => {
    chosen[t] = own[position]!;
  });
  return chosen;
}

/** Multiplies the slopes by the tokens' weights, in place, and returns the weighted loss. */
function applyWeights({ losses, slopes, slopesOfMean }: LossValues, weight: number, tokenWeights?: Floats): number {
  let total = 0;
  let slopeSum = 0;
  for (let t = 0; t < losses.length; t++) {
    const own = weight * (tokenWeights?.[t] ?? 1);
    const slope = own * slopes[t]!;
    total += own * losses[t]!;
    slopeSum += slope;
    slopes[t] = slope;
  }
  if (slopesOfMean) slopes.fill(slopeSum / slopes.length);
  return total;
}

function customValues(loss: CustomLoss, inputs: Record<LossInput | "logprob", () => Floats>): LossValues {
  const read = (name: LossInput | "logprob") => Float64Array.from(inputs[name]());
  const logprob = read("logprob");
  const old = read("oldLogprob");
  const own = Object.fromEntries(loss.inputs.map((name) => [name, read(name)]));
  const { losses, slopes } = loss.evaluate({ ...own, logprob });
  return {
    losses: Float64Array.from(losses),
    slopes: Float64Array.from(slopes),
    clipped: 0,
    capped: 0,
    kl: logprob.reduce((sum, value, t) => sum + old[t]! - value, 0),
  };
}

function required<A>(values: A | undefined, what: string): A {
  if (values === undefined) throw new RunError(`the loss needs ${what}, but the batch has none`);
  return values;
}

/**
 * Each loss that selects tokens sees all tokens that it trains, and only those.
 *
 * @returns marks in the layout of the outputs; undefined if no loss selects tokens
 * @throws RunError if the outputs are not those of the whole batch
 */
function markTokens(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: readonly WeightedSequence[],
): Uint8Array | undefined {
  let marks: Uint8Array | undefined;
  for (const loss of allLosses(options)) {
    const definition = isCustom(loss) ? undefined : definitionOf(loss);
    if (definition?.mark === undefined) continue;
    if (outputs.offsets.length !== batch.offsets.length) {
      throw new RunError(`the loss "${String(loss)}" needs the outputs of the whole batch at once`);
    }
    marks ??= new Uint8Array(outputs.logprobs.length);
    const own = sequences.filter((sequence) => sequence.loss === loss);
    const logprobs = concatenate(
      Float64Array,
      own.map(({ start, trained }) => outputs.logprobs.subarray(start, start + trained)),
    );
    const ofBatch = (values: Float32Array) =>
      concatenate(
        Float64Array,
        own.map(({ from, trained }) => values.subarray(from, from + trained)),
      );
    const old = batch.oldLogprobs === undefined ? logprobs : ofBatch(batch.oldLogprobs);
    const marked = definition.mark({ logprobs, old, advantages: ofBatch(batch.advantages) }, settingsOf(options));
    let position = 0;
    for (const { start, trained } of own) {
      marks.set(marked.subarray(position, position + trained), start);
      position += trained;
    }
  }
  return marks;
}

// Policy losses that engines compute themselves, from the losses' definitions. A hosted loss is a plain sum over tokens, so
// each token's weight is multiplied into its advantage. This is exact for losses that are linear in the advantage, and for
// clipped losses, whose bounds do not depend on a positive factor.

/**
 * Undefined if no hosted loss has the same gradient: with a KL term, an entropy bonus, several losses by role, or a loss
 * that depends on the whole batch. Tinker does not limit log-ratios to 20 as Hone does.
 *
 * Without `oldLogprobs` every ratio is 1, so the derivative by a token's log-probability is minus its weighted advantage,
 * as in cross-entropy.
 */
function hostedLoss(batch: TrainingBatch, options: PolicyLossOptions): HostedLoss | undefined {
  if (options.kl || hasEntropyBonus(options) || selectsByEntropy(options)) return undefined;
  const [loss, ...others] = new Set(batch.roles.map((role) => lossOf(options, role)));
  if (loss === undefined || others.length > 0 || isCustom(loss)) return undefined;
  const settings = settingsOf(options);
  const definition = definitionOf(loss);
  const weights = hostedTokenWeights(batch, options, loss);
  const advantages = batch.advantages.map((advantage, token) => advantage * weights[token]!);
  const { oldLogprobs: logprobs } = batch;
  if (logprobs === undefined || definition.ratio === "none") {
    const factor = definition.slopeAtOne?.(settings);
    return factor === undefined
      ? undefined
      : { ...weightedLikelihood, inputs: { weights: advantages.map((value) => value * factor) } };
  }
  const [weight = 0] = weights;
  const found = definition.onEngine?.(settings, weights.every((other) => other === weight) ? weight : undefined);
  return found && { ...found, inputs: { logprobs, advantages } };
}

/** `[N]` weight of each token's loss. */
function hostedTokenWeights(batch: TrainingBatch, options: PolicyLossOptions, loss: PolicyLossName): Float64Array {
  const weights = new Float64Array(batch.advantages.length).fill(1);
  if (batch.rolloutWeights !== undefined) weights.set(batch.rolloutWeights);
  for (const row of rowsOf(weights, batch.offsets)) {
    const weight = weightOf(options, loss, row.length, batch.totals);
    row.forEach((own, token) => {
      row[token] = own * weight;
    });
  }
  return weights;
}

// The actor's loss: policy term, KL to the reference, entropy bonus. A pure function of token outputs.

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
 * microbatches add up to 1.
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
