/** The policy term of a loss: evaluates each sequence's loss, applies the weights, writes the slopes. */
import { concatenate } from "../../concatenate.ts";
import { RunError } from "../../errors.ts";
import type { TokenOutputs, TrainingBatch } from "../../trajectories/types.ts";
import type { LossValues, SequenceTokens } from "../losses/definition.ts";
import { largestPositions } from "../losses/largest.ts";
import { definitionOf } from "../losses/policy-losses.ts";
import type { MatchedSequence } from "./aggregation.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";
import {
  type AnyLoss,
  allLosses,
  isCustom,
  type PolicyLossOptions,
  selectsByEntropy,
  settingsOf,
} from "./loss-choice.ts";

type Floats = Float32Array | Float64Array;

/** A sequence with trained tokens, its loss, and the weight of its tokens. */
export interface WeightedSequence extends MatchedSequence {
  loss: AnyLoss;
  /** Number of tokens in the policy term: all trained tokens, or those of largest entropy. */
  count: number;
  /** Weight of each token's loss. */
  weight: number;
}

export interface TermSums {
  /** Weighted. */
  loss: number;
  clipped: number;
  capped: number;
  kl: number;
}

/** Writes `dL/dlogprob` of the sequences into `slopes` (in the layout of the outputs) and returns the loss. */
export type PolicyTerm = (outputs: TokenOutputs, sequences: readonly WeightedSequence[], slopes: Floats) => TermSums;

export function policyTerm(batch: TrainingBatch, options: PolicyLossOptions): PolicyTerm {
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
