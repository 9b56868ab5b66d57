/** Which sequences of the compared trajectories are not trained on, and why. Their rewards still count. */
import { isBreak, type SampledSequence, type SequenceCause } from "./to-sequences.ts";
import type { TerminationReason } from "./types.ts";

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

const limits: ReadonlySet<TerminationReason> = new Set([
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
]);

/** The metric that counts each cause. */
export const dropMetrics = {
  malformed: "batch/dropped_malformed_sequences",
  tooLong: "batch/dropped_sequences/max_length",
  nothingSampled: "batch/dropped_sequences/nothing_sampled",
  truncated: "batch/dropped_sequences/truncated",
  overlong: "batch/dropped_sequences/overlong",
  tokenMismatch: "batch/dropped_sequences/token_mismatch",
  advantage: "batch/dropped_sequences/advantage_mismatch",
} as const;

export type DropCause = keyof typeof dropMetrics;

/** @param about how the episode ended, and why further sequences of the trajectory began */
export function dropCause(
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

const isMismatch = (cause: SequenceCause) => isBreak(cause) && cause !== "reasoning_dropped";
