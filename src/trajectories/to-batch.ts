/** Groups and their advantages into what an optimizer step sees: ragged arrays over trained tokens. */
import { mean, spread } from "../statistics.ts";
import { offsetsOf, totalsOf } from "./batch.ts";
import { type SampledSequence, toSequences } from "./to-sequences.ts";
import type { TrainingBatch, TrajectoryGroup } from "./types.ts";

export interface BatchOptions {
  /** Longest sequence in tokens, prompt and replies together. */
  maxLength: number;
}

/** Why a sequence is not trained on; each cause is counted under its metric. */
const dropMetrics = {
  malformed: "batch/dropped_malformed_sequences",
  tooLong: "batch/dropped_sequences/max_length",
  nothingSampled: "batch/dropped_sequences/nothing_sampled",
} as const;

function dropCause(sequence: SampledSequence, options: BatchOptions): keyof typeof dropMetrics | null {
  if (sequence.malformed) return "malformed";
  if (sequence.samplerLogprobs.length === 0) return "nothingSampled";
  return sequence.tokens.length > options.maxLength ? "tooLong" : null;
}

/**
 * @param advantages `[groups][members]`, given to every trained token of the member
 * @returns the batch, and under `batch/*` the figures of its making: breaks, sequences dropped by cause, lengths
 */
export function toBatch(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
  options: BatchOptions,
): { batch: TrainingBatch; metrics: Record<string, number> } {
  const rows: { sequence: SampledSequence; group: number; role: string; advantage: number }[] = [];
  const dropped = { malformed: 0, tooLong: 0, nothingSampled: 0 };
  const stepCounts: number[] = [];
  let breaks = 0;
  let sequencesMade = 0;
  groups.forEach((group, groupIndex) => {
    group.members.forEach(({ trajectory }, memberIndex) => {
      const made = toSequences(trajectory);
      breaks += made.breaks;
      sequencesMade += made.sequences.length;
      stepCounts.push(trajectory.steps.length);
      for (const sequence of made.sequences) {
        const cause = dropCause(sequence, options);
        if (cause !== null) dropped[cause]++;
        else
          rows.push({
            sequence,
            group: groupIndex,
            role: group.role,
            advantage: advantages[groupIndex]![memberIndex]!,
          });
      }
    });
  });
  return {
    batch: packRows(rows),
    metrics: {
      "batch/sequence_breaks": breaks,
      [dropMetrics.malformed]: dropped.malformed,
      [dropMetrics.tooLong]: dropped.tooLong,
      [dropMetrics.nothingSampled]: dropped.nothingSampled,
      "batch/num_sequences": rows.length,
      ...spread("batch/steps_per_traj", stepCounts),
      ...lengthMetrics(rows.map(({ sequence }) => sequence)),
      ...(sequencesMade === 0
        ? {}
        : { "batch/merge_compression_ratio": (mean(stepCounts) * stepCounts.length) / sequencesMade }),
    },
  };
}

function packRows(
  rows: readonly { sequence: SampledSequence; group: number; role: string; advantage: number }[],
): TrainingBatch {
  const offsets = offsetsOf(rows.map(({ sequence }) => sequence.samplerLogprobs.length));
  const advantages = new Float32Array(offsets.at(-1)!);
  const samplerLogprobs = new Float32Array(offsets.at(-1)!);
  rows.forEach(({ sequence, advantage }, index) => {
    advantages.fill(advantage, offsets[index]!, offsets[index + 1]!);
    samplerLogprobs.set(sequence.samplerLogprobs, offsets[index]!);
  });
  return {
    sequences: rows.map(({ sequence: { tokens, trained } }) => ({ tokens, trained })),
    offsets,
    advantages,
    samplerLogprobs,
    groups: Int32Array.from(rows, ({ group }) => group),
    roles: rows.map(({ role }) => role),
    totals: totalsOf(offsets),
  };
}

/** A response runs from the first sampled token to the end; what the environment said in between lowers the ratio. */
function lengthMetrics(sequences: readonly SampledSequence[]): Record<string, number> {
  const responses = sequences.map(({ trained }) => trained.length - trained.indexOf(1));
  return {
    ...spread("batch/step_response_length", responses),
    ...spread(
      "batch/action_token_ratio",
      sequences.map(({ samplerLogprobs }, index) => samplerLogprobs.length / responses[index]!),
    ),
  };
}
