import fc from "fast-check";
import { expect, test } from "vitest";
import { offsetsOf, totalsOf } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { valueLoss } from "./critic.ts";
import { tokenWeights } from "./policy-loss.ts";

const floats = (values: readonly number[]) => Float64Array.from(values) as unknown as Float32Array;

interface Token {
  value: number;
  old: number;
  target: number;
}

function make(rows: readonly (readonly Token[])[]) {
  const offsets = offsetsOf(rows.map(({ length }) => length));
  const flat = rows.flat();
  const batch: TrainingBatch = {
    sequences: rows.map(() => ({ tokens: new Int32Array(0), trained: new Uint8Array(0) })),
    offsets,
    advantages: new Float32Array(flat.length),
    samplerLogprobs: new Float32Array(flat.length),
    returns: floats(flat.map(({ target }) => target)),
    oldValues: floats(flat.map(({ old }) => old)),
    groups: new Int32Array(rows.length),
    roles: rows.map(() => "solver"),
    totals: totalsOf(offsets),
  };
  const outputs = { offsets, logprobs: floats(flat.map(() => -1)), values: floats(flat.map(({ value }) => value)) };
  return { batch, outputs, all: Int32Array.from(rows.keys()) };
}

/** Values far from the kinks, which are the clip's bounds and the points where both branches are equal. */
const token = fc.record({
  value: fc.constantFrom(-1.3, -0.45, 0.1, 0.33, 0.9, 2.2),
  old: fc.constantFrom(-0.6, 0.2, 0.7),
  target: fc.constantFrom(-1.01, 0.013, 1.017),
});
const rows = fc.array(fc.array(token, { maxLength: 3 }), { minLength: 1, maxLength: 4 });
const modes = Object.keys(tokenWeights) as (keyof typeof tokenWeights)[];

test.each(modes)("under %s the gradient is the central difference, and parts add up to the whole", (aggMode) => {
  const step = 1e-6;
  fc.assert(
    fc.property(rows, fc.constantFrom(null, 0.25), (drawn, clip) => {
      const { batch, outputs, all } = make(drawn);
      const loss = valueLoss(batch, { aggMode, clip });
      const whole = loss.evaluate(outputs, all);
      whole.gradient.values!.forEach((slope, index) => {
        const at = (shift: number) => {
          const values = outputs.values.slice();
          values[index]! += shift;
          return loss.evaluate({ ...outputs, values }, all).loss;
        };
        expect(slope).toBeCloseTo((at(step) - at(-step)) / (2 * step), 5);
      });
      expect(whole.gradient.logprobs.every((slope) => slope === 0)).toBe(true);
      const parts = drawn.map((_, row) => {
        const [from, to] = [batch.offsets[row]!, batch.offsets[row + 1]!];
        const own = {
          offsets: Int32Array.of(0, to - from),
          logprobs: outputs.logprobs.slice(from, to),
          values: outputs.values.slice(from, to),
        };
        return loss.evaluate(own, Int32Array.of(row)).loss;
      });
      expect(parts.reduce((sum, part) => sum + part, 0)).toBeCloseTo(whole.loss, 9);
    }),
    { numRuns: 40 },
  );
});

test("missing values are reported", () => {
  const { batch, outputs, all } = make([[{ value: 0, old: 0, target: 1 }]]);
  const { returns: _, ...without } = batch;
  expect(() => valueLoss(without, { aggMode: "token-mean", clip: null })).toThrow(/returns/);
  const { values: __, ...bare } = outputs;
  expect(() => valueLoss(batch, { aggMode: "token-mean", clip: null }).evaluate(bare, all)).toThrow(/needs values/);
});
