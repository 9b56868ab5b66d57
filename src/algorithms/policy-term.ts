/** The policy term of a loss: evaluates each sequence's loss, applies the weights, writes the slopes. */
import { RunError } from "../errors.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";
import {
  allLosses,
  choosesByEntropy,
  definitionOf,
  isCustom,
  lossOf,
  type PolicyLossOptions,
  settingsOf,
} from "./loss-choice.ts";
import { geometricMeans } from "./losses/gmpo.ts";
import { highEntropyPositions } from "./losses/high-entropy.ts";
import { emptyValues, type LossValues } from "./losses/sequence-loss.ts";
import type { PolicyLossName } from "./policy-losses.ts";

type Floats = Float32Array | Float64Array;

/** A sequence with trained tokens, and how its tokens are weighted. */
export interface Place {
  sequence: number;
  /** Index of its first token in the outputs. */
  start: number;
  /** Number of trained tokens. */
  trained: number;
  /** Number of tokens in the policy term: all trained ones, or those of largest entropy. */
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

/**
 * Writes `dL/dlogprob` of the sequences at `places` into `slopes` (laid out like the outputs) and returns the loss.
 *
 * @param sequences all sequences of the outputs
 */
export type PolicyTerm = (
  outputs: TokenOutputs,
  sequences: Int32Array,
  places: readonly Place[],
  slopes: Floats,
) => TermSums;

export function policyTerm(batch: TrainingBatch, options: PolicyLossOptions): PolicyTerm {
  const settings = new Map(allLosses(options).map((loss) => [loss, settingsOf(options, loss)]));
  const { rolloutWeights, oldLogprobs, offsets, roles } = batch;
  // gmpo has one ratio per sequence, a geometric mean, and therefore one weight per sequence.
  const geometric = settings.has("gmpo") && rolloutWeights ? geometricMeans(rolloutWeights, offsets) : undefined;

  return (outputs, sequences, places, slopes) => {
    const marks = markTokens(batch, options, outputs, sequences);
    const sums: TermSums = { loss: 0, clipped: 0, capped: 0, kl: 0 };
    for (const place of places) {
      const { sequence, start, trained, weight } = place;
      const from = offsets[sequence]!;
      const loss = lossOf(options, roles[sequence]!);
      const positions = choosePositions(options, outputs, place);
      const ofOutputs = <A extends Floats | Uint8Array>(values: A) => pick(values, start, trained, positions);
      const ofBatch = <A extends Floats | Uint8Array>(values: A) => pick(values, from, trained, positions);

      const logprobs = ofOutputs(outputs.logprobs);
      const old = oldLogprobs === undefined ? logprobs : ofBatch(oldLogprobs);
      const advantages = ofBatch(batch.advantages);
      const values = isCustom(loss)
        ? customValues(loss, {
            logprob: () => logprobs,
            oldLogprob: () => old,
            advantage: () => advantages,
            logRatio: () => logprobs.map((logprob, t) => logprob - old[t]!),
            samplerLogprob: () => ofBatch(batch.samplerLogprobs),
            referenceLogprob: () => ofBatch(given(batch.referenceLogprobs, "reference log-probabilities")),
            entropy: () => ofOutputs(given(outputs.entropy, "entropies")),
          })
        : definitionOf(loss).evaluate(
            { logprobs, old, advantages, ...(marks === null ? {} : { marked: ofOutputs(marks) }) },
            settings.get(loss)!,
          );

      const tokenWeights = loss === "gmpo" ? geometric : rolloutWeights;
      const weights = new Float64Array(logprobs.length).fill(weight);
      if (tokenWeights)
        ofBatch(tokenWeights).forEach((own, t) => {
          weights[t]! *= own;
        });
      sums.loss += applyWeights(values, weights);
      sums.clipped += values.clipped;
      sums.capped += values.capped;
      sums.kl += values.kl;
      if (positions === null) slopes.set(values.slopes, start);
      else
        positions.forEach((position, t) => {
          slopes[start + position] = values.slopes[t]!;
        });
    }
    return sums;
  };
}

/** One sequence's tokens of an array over all tokens: all of them, or those at `positions`. */
function pick<A extends Floats | Uint8Array>(values: A, first: number, count: number, positions: Int32Array | null): A {
  const own = values.subarray(first, first + count) as A;
  if (positions === null) return own;
  return (own.constructor as unknown as { from(values: Int32Array, map: (position: number) => number): A }).from(
    positions,
    (position) => own[position]!,
  );
}

/** Multiplies the slopes by the tokens' weights, in place, and returns the weighted loss. */
function applyWeights({ losses, slopes, slopesOfMean }: LossValues, weights: Float64Array): number {
  let total = 0;
  let slopeSum = 0;
  for (let t = 0; t < weights.length; t++) {
    total += weights[t]! * losses[t]!;
    slopes[t]! *= weights[t]!;
    slopeSum += slopes[t]!;
  }
  if (slopesOfMean) slopes.fill(slopeSum / weights.length);
  return total;
}

/** Positions of a sequence's tokens of largest entropy; `null`: all tokens. */
function choosePositions(
  options: PolicyLossOptions,
  { entropy }: TokenOutputs,
  { start, trained, count }: Place,
): Int32Array | null {
  if (!choosesByEntropy(options)) return null;
  return highEntropyPositions(Float64Array.from(given(entropy, "entropies").subarray(start, start + trained)), count);
}

function customValues(loss: CustomLoss, inputs: Record<LossInput | "logprob", () => Floats>): LossValues {
  const read = (name: LossInput | "logprob") => Float64Array.from(inputs[name]());
  const logprob = read("logprob");
  const old = read("oldLogprob");
  const own = Object.fromEntries(loss.inputs.map((name) => [name, read(name)]));
  const { losses, slopes } = loss.evaluate({ ...own, logprob });
  return {
    ...emptyValues(0),
    losses: Float64Array.from(losses),
    slopes: Float64Array.from(slopes),
    kl: logprob.reduce((sum, value, t) => sum + old[t]! - value, 0),
  };
}

function given<A>(values: A | undefined, what: string): A {
  if (values === undefined) throw new RunError(`the loss reads ${what}, and there are none`);
  return values;
}

/** @throws RunError if it does not get the whole batch */
function markTokens(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
): Uint8Array | null {
  const marking = allLosses(options).flatMap((loss) => (isCustom(loss) || !definitionOf(loss).mark ? [] : [loss]));
  if (marking.length === 0) return null;
  if (sequences.length !== batch.sequences.length) {
    throw new RunError(`the loss "${marking[0]}" needs the outputs of the whole batch at once`);
  }
  const marks = new Uint8Array(outputs.logprobs.length);
  for (const loss of marking) markFor(loss, batch, options, outputs, sequences, marks);
  return marks;
}

/** Writes the marks of one loss, which sees only the sequences trained by it. */
function markFor(
  loss: PolicyLossName,
  { oldLogprobs, advantages, offsets, roles }: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
  marks: Uint8Array,
): void {
  const at: number[] = [];
  const tokens = { logprobs: [] as number[], old: [] as number[], advantages: [] as number[] };
  sequences.forEach((sequence, index) => {
    if (lossOf(options, roles[sequence]!) !== loss) return;
    const shift = offsets[sequence]! - outputs.offsets[index]!;
    for (let output = outputs.offsets[index]!; output < outputs.offsets[index + 1]!; output++) {
      at.push(output);
      tokens.logprobs.push(outputs.logprobs[output]!);
      tokens.old.push(oldLogprobs === undefined ? outputs.logprobs[output]! : oldLogprobs[output + shift]!);
      tokens.advantages.push(advantages[output + shift]!);
    }
  });
  const chosen = definitionOf(loss).mark?.(tokens, settingsOf(options, loss));
  at.forEach((output, t) => {
    marks[output] = chosen?.[t] ?? 0;
  });
}
