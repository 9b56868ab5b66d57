import fc from "fast-check";
import { expect, test } from "vitest";
import { pullBack, tableOutputs } from "./bigram-table.ts";

const size = 4;
const tables = fc.array(fc.double({ min: -3, max: 3, noNaN: true }), {
  minLength: size * size,
  maxLength: size * size,
});
const sequences = fc.array(
  fc.array(fc.tuple(fc.nat(size - 1), fc.nat(1)), { minLength: 2, maxLength: 5 }).map((pairs) => ({
    tokens: Int32Array.from(pairs, ([token]) => token),
    trained: Uint8Array.from(pairs.slice(1), ([, trained]) => trained),
  })),
  { minLength: 1, maxLength: 3 },
);
const weight = fc.double({ min: -2, max: 2, noNaN: true });

test("outputs are ragged over the trained positions", () => {
  const table = Float64Array.from([0, Math.log(3), 0, 0]);
  const batch = [
    { tokens: Int32Array.of(0, 1, 0, 1), trained: Uint8Array.of(1, 0, 1) },
    { tokens: Int32Array.of(0, 0), trained: Uint8Array.of(0) },
    { tokens: Int32Array.of(1, 0), trained: Uint8Array.of(1) },
  ];
  const { offsets, logprobs, entropy } = tableOutputs(table, 2, batch);
  expect([...offsets]).toEqual([0, 2, 2, 3]);
  expect([...logprobs]).toEqual([0.75, 0.75, 0.5].map((p) => Math.fround(Math.log(p))));
  expect(entropy[2]).toBeCloseTo(Math.log(2), 6);
  expect(entropy[0]).toBeCloseTo(-0.75 * Math.log(0.75) - 0.25 * Math.log(0.25), 6);
});

test("the gradient equals finite differences, for log-probability and entropy together", () => {
  fc.assert(
    fc.property(tables, sequences, fc.infiniteStream(weight), (start, batch, weights) => {
      const table = Float64Array.from(start);
      const count = tableOutputs(table, size, batch).logprobs.length;
      const draw = () => Float32Array.from({ length: count }, () => weights.next().value as number);
      const gradient = { logprobs: draw(), entropy: draw() };
      const loss = () => {
        const { logprobs, entropy } = tableOutputs(table, size, batch);
        return logprobs.reduce(
          (sum, logprob, at) => sum + logprob * gradient.logprobs[at]! + entropy[at]! * gradient.entropy[at]!,
          0,
        );
      };
      const slopes = new Float64Array(table.length);
      pullBack(table, size, batch, gradient, slopes);
      const step = 1e-2;
      table.forEach((logit, index) => {
        table[index] = logit + step;
        const above = loss();
        table[index] = logit - step;
        const below = loss();
        table[index] = logit;
        expect(Math.abs((above - below) / (2 * step) - slopes[index]!)).toBeLessThan(5e-3);
      });
    }),
    { numRuns: 50 },
  );
});
