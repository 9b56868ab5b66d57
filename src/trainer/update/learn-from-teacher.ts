/** Adds a loss against a teacher to a policy loss. The learner is asked for the log-probabilities of further tokens. */

import {
  type EstimatorLoss,
  estimatorLoss,
  type TokensLoss,
  tokensLoss,
} from "../../algorithms/distillation/teacher-loss.ts";
import { type DivergenceDefinition, divergences } from "../../algorithms/divergences/divergences.ts";
import type { Loss, LossValue, OutputGradient } from "../../algorithms/types.ts";
import type { ForwardBackwardResult, Learner } from "../../backends/engine.ts";
import { offsetsOf, trainedPositions } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs, TrainingBatch } from "../../trajectories/types.ts";
import type { TeacherScores } from "./ask-teachers.ts";

export interface TeacherTerm {
  loss: EstimatorLoss | TokensLoss;
  coefficient: number;
}

/** A trained token: the tokens that are compared there, besides its own output. */
interface Place {
  /** The teacher's log-probability of the sampled token. */
  teacher: number;
  tokens: Int32Array;
  /** The teacher's, of those tokens. */
  logprobs: Float64Array;
}

/**
 * A learner whose gradients are those of the given loss plus the weighted loss against the teacher. Its results have the
 * outputs of the sampled tokens alone.
 *
 * @param part the batch that losses are built for; `part.scores` are the places of its tokens in `scores`
 * @param weightOf the weight of each trained token of a sequence, by its index in `part`
 */
export function learnFromTeacher(
  learner: Learner,
  part: TrainingBatch,
  scores: TeacherScores,
  term: TeacherTerm,
  weightOf: (sequence: number) => number,
): Learner {
  const indexOf = new Map(part.sequences.map((sequence, index) => [sequence, index]));

  function prepare(sequences: readonly Sequence[], loss: Loss) {
    const indices = sequences.map((sequence) => indexOf.get(sequence)!);
    const places = indices.map((index) => placesOf(part, index, scores, term.loss));
    const whole: Loss = {
      name: `${loss.name} and ${term.loss.kind === "estimator" ? term.loss.estimator : term.loss.divergence} to the teacher`,
      outputs: loss.outputs,
      ...(loss.coupled ? { coupled: true } : {}),
      evaluate(outputs, chosen) {
        const own = Array.from(chosen, (index) => places[index]!);
        const weights = Array.from(chosen, (index) => weightOf(indices[index]!));
        return withTeacher(loss.evaluate(sampledOnly(outputs, own), chosen), outputs, own, weights, term);
      },
    };
    const wide = sequences.map((sequence, index) => withTargets(sequence, places[index]!));
    const narrow = (result: ForwardBackwardResult) => ({ ...result, outputs: sampledOnly(result.outputs, places) });
    return { wide, whole, narrow };
  }

  return {
    ...learner,
    async forwardBackward(sequences, loss) {
      const { wide, whole, narrow } = prepare(sequences, loss);
      return narrow(await learner.forwardBackward(wide, whole));
    },
    ...(learner.trainStep
      ? {
          async trainStep(sequences, loss, adam) {
            const { wide, whole, narrow } = prepare(sequences, loss);
            const { result, step } = await learner.trainStep!(wide, whole, adam);
            return { result: narrow(result), step };
          },
        }
      : {}),
  };
}

function placesOf(part: TrainingBatch, index: number, scores: TeacherScores, loss: TeacherTerm["loss"]): Place[] {
  const { tokens, trained } = part.sequences[index]!;
  const [from = 0] = part.offsets.subarray(index, index + 1);
  return trainedPositions(trained).map((position, offset) => {
    const row = part.scores![from + offset]!;
    const teacher = scores.logprobs[row]!;
    const nothing = { teacher, tokens: new Int32Array(0), logprobs: new Float64Array(0) };
    if (loss.kind === "estimator" || Number.isNaN(teacher)) return nothing;
    return { teacher, ...supportOf(loss, scores, row, { token: tokens[position + 1]!, logprob: teacher }) };
  });
}

/** The tokens that a divergence compares at one place, without doubles. */
function supportOf(
  { divergence, ...options }: TokensLoss,
  { likely }: TeacherScores,
  row: number,
  sampled: { token: number; logprob: number },
): Pick<Place, "tokens" | "logprobs"> {
  const { support }: DivergenceDefinition = divergences[divergence];
  const kind = support?.(options) ?? "most likely";
  const own = { tokens: Int32Array.of(sampled.token), logprobs: Float64Array.of(sampled.logprob) };
  if (kind === "sampled") return own;
  const { count } = likely!;
  const tokens = likely!.tokens.subarray(row * count, (row + 1) * count);
  const logprobs = Float64Array.from(likely!.logprobs.subarray(row * count, (row + 1) * count));
  if (kind === "most likely" || tokens.includes(sampled.token)) return { tokens, logprobs };
  return {
    tokens: Int32Array.of(...tokens, sampled.token),
    logprobs: Float64Array.of(...logprobs, sampled.logprob),
  };
}

/** At each trained position, the sampled token and then the compared ones. */
function withTargets(sequence: Sequence, places: readonly Place[]): Sequence {
  if (places.every(({ tokens }) => tokens.length === 0)) return sequence;
  const { tokens, trained } = sequence;
  const targets: number[] = [];
  let next = 0;
  const counts = trained.map((flag, position) => {
    if (flag === 0) return 0;
    const place = places[next++]!;
    targets.push(tokens[position + 1]!, ...place.tokens);
    return 1 + place.tokens.length;
  });
  return { ...sequence, trained: counts, targets: Int32Array.from(targets) };
}

/** The index of each sampled token in outputs that also have the compared tokens. */
function sampledPlaces(sequences: readonly (readonly Place[])[]): Int32Array {
  let next = 0;
  return Int32Array.from(
    sequences.flat().map(({ tokens }) => {
      const own = next;
      next += 1 + tokens.length;
      return own;
    }),
  );
}

function sampledOnly(outputs: TokenOutputs, sequences: readonly (readonly Place[])[]): TokenOutputs {
  const at = sampledPlaces(sequences);
  const pick = (values: Float32Array) => {
    const own = values.slice(0, at.length);
    at.forEach((place, token) => {
      own[token] = values[place]!;
    });
    return own;
  };
  return {
    offsets: offsetsOf(sequences.map(({ length }) => length)),
    logprobs: pick(outputs.logprobs),
    ...(outputs.entropy ? { entropy: pick(outputs.entropy) } : {}),
  };
}

function withTeacher(
  policy: LossValue,
  outputs: TokenOutputs,
  sequences: readonly (readonly Place[])[],
  weights: readonly number[],
  { loss, coefficient }: TeacherTerm,
): LossValue {
  const at = sampledPlaces(sequences);
  const gradient: OutputGradient = { logprobs: spreadOver(outputs.logprobs, at, policy.gradient.logprobs) };
  if (policy.gradient.entropy) gradient.entropy = spreadOver(outputs.logprobs, at, policy.gradient.entropy);
  const sums = { loss: 0, value: 0, student: 0, teacher: 0 };
  let token = 0;
  for (const [index, places] of sequences.entries()) {
    const weight = coefficient * weights[index]!;
    for (const place of places) {
      const first = at[token++]!;
      if (loss.kind === "estimator") {
        const { value, slope } = estimatorLoss(outputs.logprobs[first]!, place.teacher, loss);
        sums.loss += weight * value;
        sums.value += value;
        gradient.logprobs[first]! += weight * slope;
        continue;
      }
      if (place.tokens.length === 0) continue;
      const student = Float64Array.from(outputs.logprobs.subarray(first + 1, first + 1 + place.tokens.length));
      const { value, slopes } = tokensLoss({ student, teacher: place.logprobs }, loss);
      sums.loss += weight * value;
      sums.value += value;
      sums.student += massOf(student);
      sums.teacher += massOf(place.logprobs);
      slopes.forEach((slope, k) => {
        gradient.logprobs[first + 1 + k]! += weight * slope;
      });
    }
  }
  const mean = (sum: number) => ({ sum, count: at.length });
  const metrics = { ...policy.metrics };
  if (at.length > 0) {
    metrics["distillation/loss"] = mean(sums.value);
    if (loss.kind === "tokens") {
      metrics["distillation/student_mass"] = mean(sums.student);
      metrics["distillation/teacher_mass"] = mean(sums.teacher);
    }
  }
  return { loss: policy.loss + sums.loss, gradient, metrics };
}

const massOf = (logprobs: Float64Array) => logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);

/** The values of sampled tokens in the layout of all outputs, and 0 elsewhere. */
function spreadOver(layout: Float32Array, at: Int32Array, values: Float32Array): Float32Array {
  // Gradient checks evaluate losses in float64.
  const whole = new (layout.constructor as Float32ArrayConstructor)(layout.length);
  at.forEach((place, token) => {
    whole[place] = values[token]!;
  });
  return whole;
}
