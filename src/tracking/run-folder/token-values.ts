/** Values of tokens in an episode's file: a number if all are equal, else little-endian 32-bit floats in base64. */
import type { Trajectory } from "../../trajectories/types.ts";

export type PackedValues = number | string;

/** What an update computed for the tokens of a step, `[T]` each; absent: it did not. NaN: not for this token. */
export interface StepTraining {
  /** 1: trained on, 0: rejected. */
  mask: PackedValues;
  /** As the loss used them. */
  advantage: PackedValues | undefined;
  /** Log-probabilities of the trainer at its first evaluation, in nats. */
  logprobs: PackedValues | undefined;
  /** Probability at the last evaluation over the one that the loss compares with. */
  ratio: PackedValues | undefined;
  /** 1: the policy term has no gradient at this token, although its advantage is not 0. */
  clipped: PackedValues | undefined;
  /** Entropy of the trainer's distribution, in nats. */
  entropy: PackedValues | undefined;
  /** Log-probabilities of the reference, in nats. */
  reference: PackedValues | undefined;
  /** Log-probabilities of the teacher, in nats. */
  teacher?: PackedValues | undefined;
  /** The teacher's most likely token. */
  choice?: PackedValues | undefined;
}

/** By trajectory that was trained on: one for each of its steps. */
export type StepTrainings = ReadonlyMap<Trajectory, readonly (StepTraining | null)[]>;

/** Undefined if none is known. */
export function packValues(values: Float32Array): PackedValues | undefined {
  const [first] = values;
  if (first === undefined || values.every(Number.isNaN)) return undefined;
  if (Number.isFinite(first) && values.every((value) => value === first)) return first;
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64");
}

/**
 * @param length number of tokens
 * @returns undefined if absent, or of another length
 */
export function unpackValues(packed: PackedValues | undefined, length: number): Float32Array | undefined {
  if (packed === undefined) return undefined;
  if (typeof packed === "number") return new Float32Array(length).fill(packed);
  const bytes = new Uint8Array(Buffer.from(packed, "base64"));
  return bytes.length === length * 4 ? new Float32Array(bytes.buffer) : undefined;
}
