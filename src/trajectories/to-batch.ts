/** Turns groups and their advantages into a training batch: ragged arrays over trained tokens. */
import { concatenate } from "../concatenate.ts";
import { spread } from "../statistics.ts";
import { offsetsOf, totalsOf } from "./batch.ts";
import {
  isBreak,
  isMismatch,
  type SampledSequence,
  type SequenceCause,
  sequenceCauses,
  toSequences,
} from "./to-sequences.ts";
import type { TerminationReason, TrainingBatch, Trajectory, TrajectoryGroup } from "./types.ts";

/** The advantage of a whole trajectory, or of each of its steps: one number, or one for each token of the step. */
export type MemberAdvantage = number | readonly StepAdvantage[];
export type StepAdvantage = number | ArrayLike<number>;

/** Where a sequence of a batch comes from: the trained steps of a trajectory. */
export interface SequenceSource {
  trajectory: Trajectory;
  steps: SampledSequence["steps"];
}

/** Which sequences of the compared trajectories are not trained on. Their rewards still count. */
export interface SequenceFilters {
  /** Longest sequence in tokens, prompt and replies together. */
  maxLength: number;
  /** Drop sequences whose last reply was cut off (`mask_truncated_samples`). */
  truncated?: boolean;
  /** Drop trajectories that ran into a limit: length, turns or time (`overlong_filter`). */
  overlong?: boolean;
  /**
   * Drop trajectories whose history was not kept as it was sampled; else each of their sequences is trained on.
   * Thinking that the template removes by design (`reasoning_dropped`) does not count.
   */
  filterTokenMismatch?: boolean;
}

/** The metric that counts each cause. */
const dropMetrics = {
  malformed: "batch/dropped_malformed_sequences",
  tooLong: "batch/dropped_sequences/max_length",
  nothingSampled: "batch/dropped_sequences/nothing_sampled",
  truncated: "batch/dropped_sequences/truncated",
  overlong: "batch/dropped_sequences/overlong",
  tokenMismatch: "batch/dropped_sequences/token_mismatch",
  advantage: "batch/dropped_sequences/advantage_mismatch",
} as const;

type DropCause = keyof typeof dropMetrics;

interface Row {
  sequence: SampledSequence;
  trajectory: Trajectory;
  group: number;
  role: string;
  /** `[N]` */
  advantages: Float32Array;
}

/**
 * @param advantages `[groups][members]`
 * @returns the batch, where each of its sequences comes from, and `batch/*`: breaks, sequences dropped by cause, lengths
 */
export function toBatch(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly MemberAdvantage[])[],
  filters: SequenceFilters,
): { batch: TrainingBatch; sources: SequenceSource[]; metrics: Record<string, number> } {
  const rows: Row[] = [];
  const dropped = Object.fromEntries(Object.keys(dropMetrics).map((cause) => [cause, 0])) as Record<DropCause, number>;
  const stepCounts: number[] = [];
  const causes: SequenceCause[] = [];
  let sequencesMade = 0;
  groups.forEach(({ members, role }, group) => {
    members.forEach(({ episode, trajectory }, member) => {
      const made = toSequences(trajectory);
      causes.push(...made.causes);
      sequencesMade += made.sequences.length;
      stepCounts.push(trajectory.steps.length);
      for (const sequence of made.sequences) {
        const about = { termination: episode.termination, causes: made.causes };
        const own = tokenAdvantages(sequence, advantages[group]?.[member] ?? Number.NaN);
        const cause = dropCause(sequence, about, filters);
        if (cause !== null) dropped[cause]++;
        else if (own === null) dropped.advantage++;
        else rows.push({ sequence, trajectory, group, role, advantages: own });
      }
    });
  });
  const metrics: Record<string, number> = {
    ...causeMetrics(causes),
    ...Object.fromEntries(Object.entries(dropMetrics).map(([cause, name]) => [name, dropped[cause as DropCause]])),
    "batch/num_sequences": rows.length,
    ...spread("batch/steps_per_traj", stepCounts),
    ...lengthMetrics(rows.map(({ sequence }) => sequence)),
  };
  const steps = stepCounts.reduce((sum, count) => sum + count, 0);
  if (sequencesMade > 0) metrics["batch/merge_compression_ratio"] = steps / sequencesMade;
  return {
    batch: packRows(rows),
    sources: rows.map(({ trajectory, sequence: { steps } }) => ({ trajectory, steps })),
    metrics,
  };
}

const limits: ReadonlySet<TerminationReason> = new Set([
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
]);

/** @param about how the episode ended, and why further sequences of the trajectory began */
function dropCause(
  sequence: SampledSequence,
  about: { termination: TerminationReason; causes: readonly SequenceCause[] },
  filters: SequenceFilters,
): DropCause | null {
  if (sequence.malformed) return "malformed";
  if (sequence.samplerLogprobs.length === 0) return "nothingSampled";
  if (sequence.tokens.length > filters.maxLength) return "tooLong";
  if (filters.truncated && sequence.truncated) return "truncated";
  if (filters.overlong && limits.has(about.termination)) return "overlong";
  return filters.filterTokenMismatch && about.causes.some(isMismatch) ? "tokenMismatch" : null;
}

/** All breaks, and how often each cause of a further sequence occurred. */
function causeMetrics(causes: readonly SequenceCause[]): Record<string, number> {
  const counts = sequenceCauses
    .map((cause) => [`batch/sequence_starts/${cause}`, causes.filter((one) => one === cause).length] as const)
    .filter(([, count]) => count > 0);
  return { "batch/sequence_breaks": causes.filter(isBreak).length, ...Object.fromEntries(counts) };
}

/** `[N]`, or null if a step does not have one advantage for each of its tokens. */
function tokenAdvantages({ steps, samplerLogprobs }: SampledSequence, given: MemberAdvantage): Float32Array | null {
  const values = new Float32Array(samplerLogprobs.length);
  if (typeof given === "number") return values.fill(given);
  let position = 0;
  for (const { step, tokens } of steps) {
    const own = given[step];
    if (typeof own === "number") values.fill(own, position, position + tokens);
    else if (own?.length === tokens) values.set(own, position);
    else return null;
    position += tokens;
  }
  return values.every(Number.isFinite) ? values : null;
}

function packRows(rows: readonly Row[]): TrainingBatch {
  const logprobs = rows.map(({ sequence }) => sequence.samplerLogprobs);
  const advantages = rows.map((row) => row.advantages);
  const offsets = offsetsOf(logprobs.map(({ length }) => length));
  const batch: TrainingBatch = {
    sequences: rows.map(({ sequence: { tokens, trained, media, routing } }) => ({
      tokens,
      trained,
      ...(media ? { media } : {}),
      ...(routing ? { routing } : {}),
    })),
    offsets,
    advantages: concatenate(Float32Array, advantages),
    samplerLogprobs: concatenate(Float32Array, logprobs),
    groups: Int32Array.from(rows, ({ group }) => group),
    roles: rows.map(({ role }) => role),
    totals: totalsOf(offsets),
  };
  if (rows.some(({ sequence }) => sequence.processed)) batch.processed = true;
  return batch;
}

/** A response reaches from the first sampled token to the end. Text of the environment in between lowers the ratio. */
function lengthMetrics(sequences: readonly SampledSequence[]): Record<string, number> {
  const length = ({ trained }: SampledSequence) => trained.length - trained.indexOf(1);
  const ratios = sequences.map((sequence) => sequence.samplerLogprobs.length / length(sequence));
  return {
    ...spread("batch/step_response_length", sequences.map(length)),
    ...spread("batch/action_token_ratio", ratios),
  };
}
