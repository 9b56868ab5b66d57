/** Sequences and their per-token outputs as the flat arrays of the protocol, and back. Pure. */
import type { OutputGradient } from "../../algorithms/types.ts";
import { RunError, UserError } from "../../errors.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import type { Frame, OutgoingArrays } from "./frames.ts";

/** `[S + 1]`: sequence `s` owns `[offsets[s], offsets[s + 1])`. */
export function offsetsOf(lengths: readonly number[]): Int32Array {
  const offsets = new Int32Array(lengths.length + 1);
  lengths.forEach((length, index) => {
    offsets[index + 1] = offsets[index]! + length;
  });
  return offsets;
}

/** Arrays of equal kind end to end. */
export function concatenate(arrays: readonly Int32Array[]): Int32Array {
  const whole = new Int32Array(arrays.reduce((total, array) => total + array.length, 0));
  let position = 0;
  for (const array of arrays) {
    whole.set(array, position);
    position += array.length;
  }
  return whole;
}

/** @throws UserError when a sequence is empty or its mask does not fit its tokens */
export function sequenceArrays(sequences: readonly Sequence[]): OutgoingArrays {
  const offsets = offsetsOf(sequences.map(({ tokens }) => tokens.length));
  const trained = new Uint8Array(offsets.at(-1)! - sequences.length);
  sequences.forEach((sequence, index) => {
    if (sequence.tokens.length === 0) throw new UserError(`sequence ${index} has no tokens`);
    if (sequence.trained.length !== sequence.tokens.length - 1) {
      throw new UserError(
        `sequence ${index} has ${sequence.tokens.length} tokens and a mask of ${sequence.trained.length} entries, not one less than its tokens`,
      );
    }
    trained.set(sequence.trained, offsets[index]! - index);
  });
  return { tokens: concatenate(sequences.map(({ tokens }) => tokens)), offsets, trained };
}

/** Offsets of the trained tokens of each sequence. */
export function trainedOffsets(sequences: readonly Sequence[]): Int32Array {
  return offsetsOf(sequences.map(({ trained }) => trained.reduce((total, flag) => total + (flag === 0 ? 0 : 1), 0)));
}

const outputNames = ["logprobs", "entropy"] as const;

/** The outputs in a frame for sequences with these trained offsets. @throws RunError when they do not fit */
export function readOutputs(frame: Frame, offsets: Int32Array, wantsEntropy: boolean): TokenOutputs {
  const read = (name: string): Float32Array => {
    const data = frame.arrays[name]?.data;
    if (!(data instanceof Float32Array) || data.length !== offsets.at(-1)) {
      throw new RunError(`the worker sent ${data?.length ?? "no"} ${name} for ${offsets.at(-1)} trained tokens`);
    }
    return data;
  };
  return { offsets, logprobs: read("logprobs"), ...(wantsEntropy ? { entropy: read("entropy") } : {}) };
}

/** Copies outputs of some sequences to their places in the whole batch's. */
export function scatter(whole: TokenOutputs, part: TokenOutputs, sequences: Int32Array): void {
  for (const name of outputNames) {
    const source = part[name];
    const target = whole[name];
    if (source === undefined || target === undefined) continue;
    sequences.forEach((sequence, index) => {
      target.set(source.subarray(part.offsets[index]!, part.offsets[index + 1]!), whole.offsets[sequence]!);
    });
  }
}

/** The gradient of some sequences out of the whole batch's. */
export function gather(whole: OutputGradient, offsets: Int32Array, sequences: Int32Array): OutputGradient {
  const pick = (source: Float32Array): Float32Array => {
    const pieces = Array.from(sequences, (sequence) => source.subarray(offsets[sequence]!, offsets[sequence + 1]!));
    const picked = new Float32Array(pieces.reduce((total, piece) => total + piece.length, 0));
    let position = 0;
    for (const piece of pieces) {
      picked.set(piece, position);
      position += piece.length;
    }
    return picked;
  };
  return { logprobs: pick(whole.logprobs), ...(whole.entropy === undefined ? {} : { entropy: pick(whole.entropy) }) };
}

/** Room for the outputs of a whole batch. */
export function emptyOutputs(offsets: Int32Array, wantsEntropy: boolean): TokenOutputs {
  const count = offsets.at(-1)!;
  return { offsets, logprobs: new Float32Array(count), ...(wantsEntropy ? { entropy: new Float32Array(count) } : {}) };
}
