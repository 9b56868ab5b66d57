/** Hone's sequences as Tinker's datums, and the answers back. Pure. */

import { RunError } from "../../errors.ts";
import type { InputChunk } from "../../tinker-protocol/chunks.ts";
import type { Datum, DatumOutput } from "../../tinker-protocol/training.ts";
import { offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";

/** The limits of one request, as in the service's own client. */
const chunkLimits = { datums: 1024, bytes: 5_000_000 };

/** A sequence that has outputs: its index, and the places of its outputs in the datum's `[N]` or `[N, K]`. */
export interface Planned {
  sequence: number;
  tokens: Int32Array;
  media?: Sequence["media"];
  targets: Int32Array | undefined;
  places: Int32Array;
  /** Tokens that are scored at each position; 1 gives the shape `[N]`. */
  width: number;
}

export function planDatums(sequences: readonly Sequence[]): Planned[] {
  return sequences.flatMap(({ tokens, trained, targets, media }, sequence) => {
    const width = targets ? trained.reduce((most, count) => Math.max(most, count), 1) : 1;
    const places: number[] = [];
    trained.forEach((count, position) => {
      for (let index = 0; index < (targets ? count : Number(count !== 0)); index++)
        places.push(position * width + index);
    });
    return places.length === 0 ? [] : [{ sequence, tokens, media, targets, places: Int32Array.from(places), width }];
  });
}

/** What a loss reads of each output, by name. */
export type DatumInputs = Readonly<Record<string, ArrayLike<number>>>;

/**
 * Position i of the input predicts target i; inputs are 0 where there is no output.
 * @param input the sequence without its last token
 */
export function toDatum(input: InputChunk[], { tokens, targets, places, width }: Planned, inputs: DatumInputs): Datum {
  const length = tokens.length - 1;
  const shape = width === 1 ? [length] : [length, width];
  const spread = <Whole extends Float32Array | Float64Array>(whole: Whole, values: ArrayLike<number>): Whole => {
    for (const [index, place] of places.entries()) whole[place] = values[index] ?? 0;
    return whole;
  };
  const wanted = targets ? spread(new Float64Array(length * width), targets) : Float64Array.from(tokens.subarray(1));
  const lossInputs: Datum["lossInputs"] = { target_tokens: { dtype: "int64", values: wanted, shape } };
  for (const [name, values] of Object.entries(inputs)) {
    lossInputs[name] = { dtype: "float32", values: spread(new Float32Array(length * width), values), shape };
  }
  return { input, lossInputs };
}

/** Cuts datums into requests. */
export function chunksOf(datums: readonly Datum[]): Datum[][] {
  const chunks: Datum[][] = [];
  let bytes = 0;
  for (const datum of datums) {
    const own = bytesOf(datum);
    const last = chunks.at(-1);
    if (last && last.length < chunkLimits.datums && bytes + own <= chunkLimits.bytes) {
      last.push(datum);
      bytes += own;
    } else {
      chunks.push([datum]);
      bytes = own;
    }
  }
  return chunks;
}

function bytesOf({ input, lossInputs }: Datum): number {
  const tokens = input.reduce((sum, chunk) => sum + sizeOf(chunk), 0);
  return Object.values(lossInputs).reduce(
    (sum, { dtype, values }) => sum + values.length * (dtype === "int64" ? 8 : 4),
    tokens,
  );
}

function sizeOf(chunk: InputChunk): number {
  if (chunk.kind === "text") return 4 * chunk.tokens.length;
  return chunk.kind === "image" ? chunk.data.length : 0;
}

/** The outputs of all sequences from those of the datums, in the order of `plan`. */
export function gatherOutputs(count: number, plan: readonly Planned[], answers: readonly DatumOutput[]): TokenOutputs {
  if (answers.length !== plan.length) {
    throw new RunError(`the Tinker service returned outputs of ${answers.length} datums for ${plan.length}`);
  }
  const counts = new Array<number>(count).fill(0);
  for (const { sequence, places } of plan) counts[sequence] = places.length;
  const offsets = offsetsOf(counts);
  const logprobs = new Float32Array(counts.reduce((sum, own) => sum + own, 0));
  for (const [index, { sequence, places }] of plan.entries()) {
    const answer: ArrayLike<number> = answers[index]?.logprobs ?? [];
    const own = Float32Array.from(places, (place) => answer[place] ?? Number.NaN);
    logprobs.set(own, offsets[sequence]);
  }
  return { offsets, logprobs };
}
