/** Finds the trained tokens of sequences in a batch and in an engine's outputs. */
import { RunError } from "../errors.ts";

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
