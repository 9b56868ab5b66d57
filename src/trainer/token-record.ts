/** Records the values that an update computes for each trained token, so that they can be shown with the episodes. */
import type { WatchTerm } from "../algorithms/policy-loss.ts";
import { packValues, type TokenValues } from "../tracking/json-lines.ts";
import type { SequenceOrigin } from "../trajectories/batch.ts";
import type { Sequence, TokenOutputs, TrainingBatch, Trajectory } from "../trajectories/types.ts";
import type { TeacherScores } from "./teachers.ts";

export interface TokenRecord {
  /** Returns a function that records each evaluation of the loss for this part of the batch. */
  watch(part: TrainingBatch): WatchTerm;
  /** For an engine that evaluates a loss itself: the log-probabilities that it returned, unless the part was watched. */
  outputs(part: TrainingBatch, outputs: TokenOutputs): void;
  /** @param raw the batch before tokens were rejected @param origins `[S]` */
  byStep(raw: TrainingBatch, origins: readonly SequenceOrigin[]): Map<Trajectory, (TokenValues | null)[]>;
}

/** @param batch as it is trained on; its sequences are those of the raw batch, in order */
export function recordTokens(batch: TrainingBatch, scores?: TeacherScores): TokenRecord {
  const size = batch.advantages.length;
  const unknown = () => new Float32Array(size).fill(Number.NaN);
  /** Log-probabilities of the first and of the last evaluation. */
  const first = unknown();
  const last = unknown();
  const entropy = unknown();
  const clipped = unknown();
  const indexOf = new Map<Sequence, number>(batch.sequences.map((sequence, index) => [sequence, index]));
  const watched = new Set<TrainingBatch>();

  function keep(part: TrainingBatch, outputs: TokenOutputs, sequences: ArrayLike<number>, slopes?: Float32Array): void {
    for (let at = 0; at < sequences.length; at++) {
      const to = batch.offsets[indexOf.get(part.sequences[sequences[at]!]!)!]!;
      const [from = 0, end = 0] = outputs.offsets.subarray(at, at + 2);
      for (let token = from; token < end; token++) {
        const place = to + token - from;
        last[place] = outputs.logprobs[token]!;
        if (Number.isNaN(first[place])) {
          first[place] = last[place]!;
          if (outputs.entropy) entropy[place] = outputs.entropy[token]!;
        }
        if (slopes) clipped[place] = slopes[token] === 0 && batch.advantages[place] !== 0 ? 1 : 0;
      }
    }
  }

  return {
    watch: (part) => (outputs, sequences, slopes) => {
      watched.add(part);
      keep(part, outputs, sequences, slopes);
    },
    outputs(part, outputs) {
      if (watched.has(part) || outputs.offsets.length !== part.sequences.length + 1) return;
      keep(part, outputs, Array.from(part.sequences.keys()));
    },
    byStep(raw, origins) {
      const ratio = last.map((value, token) => Math.exp(value - (batch.oldLogprobs ?? first)[token]!));
      const { advantages: advantage, referenceLogprobs: reference } = batch;
      const { teacher, choice } = taughtValues(batch, scores);
      const found = new Map<Trajectory, (TokenValues | null)[]>();
      for (const [index, { trajectory, steps }] of origins.entries()) {
        const own = found.get(trajectory) ?? trajectory.steps.map(() => null);
        found.set(trajectory, own);
        const places = trainedPlaces(raw.sequences[index]!, batch.sequences[index]!, batch.offsets[index]!);
        let from = 0;
        for (const { step, tokens } of steps) {
          const part = places.subarray(from, from + tokens);
          from += tokens;
          const pick = (values: Float32Array | undefined) =>
            values && packValues(Float32Array.from(part, (place) => (place < 0 ? Number.NaN : values[place]!)));
          own[step] = {
            mask: packValues(Float32Array.from(part, (place) => (place < 0 ? 0 : 1))) ?? 0,
            advantage: pick(advantage),
            logprobs: pick(first),
            ratio: pick(ratio),
            clipped: pick(clipped),
            entropy: pick(entropy),
            reference: pick(reference),
            teacher: pick(teacher),
            choice: pick(choice),
          };
        }
      }
      return found;
    },
  };
}

/** `[N]` what the teacher thinks of each token, and the token that it would have sampled most likely; NaN: unknown. */
function taughtValues(
  { scores: rows }: TrainingBatch,
  scores: TeacherScores | undefined,
): { teacher?: Float32Array; choice?: Float32Array } {
  if (!scores || !rows) return {};
  const { logprobs, likely } = scores;
  const teacher = rows.map((row) => logprobs[row]!);
  if (!likely) return { teacher };
  const choice = rows.map((row) => {
    const token = likely.tokens[row * likely.count]!;
    return token < 0 ? Number.NaN : token;
  });
  return { teacher, choice };
}

/** `[T]` for each token that could be trained on: its place in the batch's arrays, -1 if it was rejected. */
function trainedPlaces(raw: Sequence, final: Sequence, offset: number): Int32Array {
  const places: number[] = [];
  let place = offset;
  for (const [position, could] of raw.trained.entries()) {
    if (could === 1) places.push(final.trained[position] === 1 ? place++ : -1);
  }
  return Int32Array.from(places);
}
