import fc from "fast-check";
import { expect, test } from "vitest";
import type { SamplingParams } from "../backends/engine.ts";
import { plainParams } from "../backends/sampling-params.ts";
import { drawToken } from "./draw-token.ts";

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
