/** Sequences and their per-token outputs as the flat arrays of the protocol, and back. Pure. */

import type { OutputGradient } from "../../algorithms/types.ts";
import { concatenate } from "../../concatenate.ts";
import { RunError, UserError } from "../../errors.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import type { Frame, OutgoingArrays } from "./frames.ts";

/** @throws UserError when a sequence is empty, or its mask or targets do not fit its tokens */
export function sequenceArrays(sequences: readonly Sequence[]): OutgoingArrays {
  const offsets = offsetsOf(sequences.map(({ tokens }) => tokens.length));
  for (const [index, sequence] of sequences.entries()) {
    if (sequence.tokens.length === 0) throw new UserError(`sequence ${index} has no tokens`);
    if (sequence.trained.length !== sequence.tokens.length - 1) {
      throw new UserError(
        `sequence ${index} has ${sequence.tokens.length} tokens, so its mask must have ${sequence.tokens.length - 1} entries, not ${sequence.trained.length}`,
      );
    }
  }
  const masks = sequences.map((sequence) => sequence.trained);
  const trained = concatenate(Uint8Array, masks);
  const tokens = concatenate(
    Int32Array,
    sequences.map((sequence) => sequence.tokens),
  );
  const arrays = { tokens, offsets, trained, ...routingArray(sequences) };
  if (sequences.every(({ targets }) => targets === undefined)) return arrays;
  return { ...arrays, targets: concatenate(Int32Array, sequences.map(targetsOf)) };
}

/** The experts of all tokens except each sequence's last; -1 where they are unknown. */
function routingArray(sequences: readonly Sequence[]): OutgoingArrays {
  const known = sequences.find(({ routing }) => routing !== undefined)?.routing;
  if (known === undefined) return {};
  const { layers, expertsOfToken } = known;
  const parts = sequences.map(
    ({ routing, trained }) => routing?.experts ?? new Int16Array(trained.length * layers * expertsOfToken).fill(-1),
  );
  const experts = concatenate(Int16Array, parts);
  return { experts: { data: experts, shape: [experts.length / (layers * expertsOfToken), layers, expertsOfToken] } };
}

function targetsOf({ tokens, trained, targets }: Sequence, index: number): Int32Array {
  if (targets === undefined) return tokens.subarray(1).filter((_, position) => trained[position] !== 0);
  const outputs = trained.reduce((total, count) => total + count, 0);
  if (targets.length !== outputs) {
    throw new UserError(`sequence ${index} has ${targets.length} targets for ${outputs} outputs`);
  }
  return targets;
}

/** Offsets of the outputs of each sequence: one per trained token, or one per target. */
export function trainedOffsets(sequences: readonly Sequence[]): Int32Array {
  return offsetsOf(
    sequences.map(
      ({ trained, targets }) => targets?.length ?? trained.reduce((total, flag) => total + (flag === 0 ? 0 : 1), 0),
    ),
  );
}

const gradientNames = ["logprobs", "entropy", "values"] as const;
const outputNames = [...gradientNames, "concentration"] as const;
export type OutputName = (typeof outputNames)[number];

/** The outputs in a frame for sequences with these trained offsets. @throws RunError if their lengths differ */
export function readOutputs(frame: Frame, offsets: Int32Array, names: readonly OutputName[]): TokenOutputs {
  const read = (name: string): Float32Array => {
    const data = frame.arrays[name]?.data;
    if (!(data instanceof Float32Array) || data.length !== offsets.at(-1)) {
      throw new RunError(`the worker sent ${data?.length ?? "no"} ${name} for ${offsets.at(-1)} trained tokens`);
    }
    return data;
  };
  return outputsOf(offsets, names, read);
}

/** Copies outputs of some sequences to their places in the whole batch's. */
export function scatter(whole: TokenOutputs, part: TokenOutputs, sequences: Int32Array): void {
  for (const name of outputNames) {
    const source = part[name];
    const target = whole[name];
    if (source === undefined || target === undefined || target.length === 0) continue;
    sequences.forEach((sequence, index) => {
      target.set(source.subarray(part.offsets[index], part.offsets[index + 1]), whole.offsets[sequence]);
    });
  }
}

/** The gradient of some sequences, from the whole batch's. */
export function gather(whole: OutputGradient, offsets: Int32Array, sequences: Int32Array): OutputGradient {
  const pick = (source: Float32Array): Float32Array => {
    const pieces = Array.from(sequences, (sequence) => source.subarray(offsets[sequence], offsets[sequence + 1]));
    return concatenate(Float32Array, pieces);
  };
  const picked = gradientNames.flatMap((name) => (whole[name] === undefined ? [] : [[name, pick(whole[name])]]));
  return Object.fromEntries(picked) as OutputGradient;
}

/** Arrays for the outputs of a whole batch. */
export const emptyOutputs = (offsets: Int32Array, names: readonly OutputName[]): TokenOutputs =>
  outputsOf(offsets, names, () => new Float32Array(offsets.at(-1) ?? 0));

/** A critic's outputs have no log-probabilities. */
function outputsOf(
  offsets: Int32Array,
  names: readonly OutputName[],
  make: (name: OutputName) => Float32Array,
): TokenOutputs {
  const made = Object.fromEntries(names.map((name) => [name, make(name)]));
  return { offsets, logprobs: new Float32Array(0), ...made };
}
