import fc from "fast-check";
import { expect, test } from "vitest";
import type { SamplingParams } from "../backends/engine.ts";
import { plainParams } from "../backends/engine-parts.ts";
import { drawToken, pullBack, tableOutputs } from "./bigram-table.ts";

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

const logs = Float64Array.from([0.1, 0.4, 0.2, 0.3], Math.log);

/** Shares of the tokens over evenly spread uniforms. */
function shares(params: Partial<SamplingParams>): number[] {
  const counts = [0, 0, 0, 0];
  for (let draw = 0; draw < 1000; draw++)
    counts[drawToken(logs, { ...plainParams, ...params }, (draw + 0.5) / 1000)]!++;
  return counts.map((count) => count / 1000);
}

test.each<[string, Partial<SamplingParams>, number[]]>([
  ["no parameters", {}, [0.1, 0.4, 0.2, 0.3]],
  ["greedy", { temperature: 0 }, [0, 1, 0, 0]],
  ["temperature 1/2 squares", { temperature: 0.5 }, [1 / 30, 16 / 30, 4 / 30, 9 / 30]],
  ["top-k", { topK: 2 }, [0, 4 / 7, 0, 3 / 7]],
  ["top-p keeps the token that crosses", { topP: 0.5 }, [0, 4 / 7, 0, 3 / 7]],
  ["top-p at the edge", { topP: 0.4 }, [0, 1, 0, 0]],
  ["top-p after top-k", { topK: 2, topP: 0.57 }, [0, 1, 0, 0]],
  ["min-p", { minP: 0.5 }, [0, 4 / 9, 2 / 9, 3 / 9]],
  ["temperature before min-p", { minP: 0.5, temperature: 0.5 }, [0, 16 / 25, 0, 9 / 25]],
])("%s", (_name, params, expected) => {
  for (const [token, share] of shares(params).entries()) expect(share).toBeCloseTo(expected[token]!, 2);
});

test("always draws a token that is possible", () => {
  fc.assert(
    fc.property(
      fc.array(fc.double({ min: -50, max: 0, noNaN: true }), { minLength: 1, maxLength: 6 }),
      fc.record({
        temperature: fc.double({ min: 0.05, max: 5, noNaN: true }),
        topP: fc.double({ min: 0.01, max: 1, noNaN: true }),
        topK: fc.integer({ min: -1, max: 8 }),
        minP: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
      fc.double({ min: 0, max: 1 - 2 ** -53, noNaN: true }),
      (row, params, uniform) => {
        const token = drawToken(Float64Array.from(row), { ...plainParams, ...params }, uniform);
        expect(row[token]).toBeDefined();
      },
    ),
  );
});
