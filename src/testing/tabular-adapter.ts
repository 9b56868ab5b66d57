/** Which part of a bigram table is trained: all of it, a low-rank change to it, or nothing. */
import type { AdapterSpec } from "../backends/engine.ts";
import { uniforms } from "../random.ts";
import type { Table } from "./bigram-table.ts";

export interface TabularAdapter {
  /** The parameters before training; empty if nothing is trained. */
  initial: Float64Array;
  toTable(parameters: Float64Array): Table;
  /** The gradient with respect to the parameters, from the gradient with respect to the table. */
  pullBack(parameters: Float64Array, byTable: Table): Float64Array;
}

/** @param size the vocabulary's */
export function tabularAdapter(base: Table, size: number, spec: AdapterSpec): TabularAdapter {
  switch (spec.kind) {
    case "none":
      return { initial: new Float64Array(0), toTable: () => base, pullBack: () => new Float64Array(0) };
    case "full":
      return { initial: base, toTable: (parameters) => parameters, pullBack: (_, byTable) => byTable.slice() };
    case "lora":
      return lowRank(base, size, spec);
  }
}

/**
 * table = base + (alpha / rank) B A, after Hu et al. 2021: B `[V, rank]` begins at zero, A `[rank, V]` at random.
 * The parameters are B, then A. All of the spec's targets mean the table, the only matrix.
 */
function lowRank(base: Table, size: number, spec: { rank: number; alpha: number; seed: number }): TabularAdapter {
  const { rank, alpha, seed } = spec;
  const scale = alpha / rank;
  const half = size * rank;
  const next = uniforms(seed);
  const initial = Float64Array.from({ length: 2 * half }, (_, index) => (index < half ? 0 : 2 * next() - 1));

  /** Calls `visit` with the places in B, A and the table that are multiplied with and added to each other. */
  const eachProduct = (visit: (inB: number, inA: number, inTable: number) => void) => {
    for (let row = 0; row < size; row++) {
      for (let between = 0; between < rank; between++) {
        for (let column = 0; column < size; column++) {
          visit(row * rank + between, half + between * size + column, row * size + column);
        }
      }
    }
  };
  return {
    initial,
    toTable(parameters) {
      const table = base.slice();
      eachProduct((inB, inA, inTable) => {
        table[inTable]! += scale * parameters[inB]! * parameters[inA]!;
      });
      return table;
    },
    pullBack(parameters, byTable) {
      const gradient = new Float64Array(parameters.length);
      eachProduct((inB, inA, inTable) => {
        gradient[inB]! += scale * byTable[inTable]! * parameters[inA]!;
        gradient[inA]! += scale * byTable[inTable]! * parameters[inB]!;
      });
      return gradient;
    },
  };
}
