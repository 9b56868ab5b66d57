import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compile, type Formula } from "./kernel.ts";
import { constant, input, type Lanes, setting } from "./lanes.ts";

const [a, b] = [input("a"), input("b")];
const precisions = ["float32", "float64"] as const;

/** What a formula of `a` and `b` gives of these figures. */
function run(
  formula: Partial<Formula> & { output: Lanes },
  precision: (typeof precisions)[number],
  ...arrays: number[][]
) {
  const own = precision === "float32" ? Float32Array : Float64Array;
  const values = new own(arrays[0]!.length);
  const spans = { a: { values: own.from(arrays[0]!), from: 0 }, b: { values: own.from(arrays[1] ?? []), from: 0 } };
  const kernel = compile({ sums: [], counts: [], ...formula }, precision);
  const totals = kernel.run(values.length, spans, { scale: 3 }, { values, from: 0 });
  return { values: [...values], totals };
}

describe.each(precisions)("in %s", (precision) => {
  const rounded = (value: number) => (precision === "float32" ? Math.fround(value) : value);

  test("each operation is JavaScript's, also of what is no number", () => {
    const operations: [Lanes, (x: number, y: number) => number][] = [
      [a.plus(b), (x, y) => x + y],
      [a.minus(b), (x, y) => x - y],
      [a.times(b), (x, y) => x * y],
      [a.over(b), (x, y) => x / y],
      [a.negated(), (x) => -x],
      [a.abs(), (x) => Math.abs(x)],
      [a.sign(), (x) => (x > 0 ? 1 : x < 0 ? -1 : 0)],
      [a.clamp(-1, 2), (x) => (x > 2 ? 2 : x < -1 ? -1 : x)],
      [a.above(b).choose(a, 7), (x, y) => (x > y ? x : 7)],
      [a.below(b).or(a.equals(1)).choose(b, a), (x, y) => (x < y || x === 1 ? y : x)],
      [a.above(0).and(b.above(0)).choose(1, 0), (x, y) => (x > 0 && y > 0 ? 1 : 0)],
      [a.times(setting("scale")).plus(constant(0.5)), (x) => rounded(x * 3) + 0.5],
    ];
    const special = [0, 1, -1, 2.5, -0.375, 1e30, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN];
    const pairs = special.flatMap((x) => special.map((y) => [rounded(x), rounded(y)] as const));
    for (const [output, expected] of operations) {
      const { values } = run(
        { output },
        precision,
        pairs.map(([x]) => x),
        pairs.map(([, y]) => y),
      );
      expect(values).toEqual(pairs.map(([x, y]) => rounded(expected(x, y))));
    }
  });

  test("the exponentials are those of Math, over the whole range", () => {
    const [least, most, close] = precision === "float32" ? [-87, 88, 4e-7] : [-708, 709, 4e-15];
    const near = fc.double({ min: -1, max: 1, noNaN: true }).map(rounded);
    const wide = fc.double({ min: least, max: most, noNaN: true }).map(rounded);
    fc.assert(
      fc.property(fc.array(fc.oneof(near, wide), { minLength: 1, maxLength: 20 }), (drawn) => {
        const grown = run({ output: a.expm1() }, precision, drawn).values;
        run({ output: a.exp() }, precision, drawn).values.forEach((value, index) => {
          expect(Math.abs(value / Math.exp(drawn[index]!) - 1)).toBeLessThan(close);
          const growth = Math.expm1(drawn[index]!);
          // Subnormal numbers have fewer digits.
          expect(Math.abs(grown[index]! - growth)).toBeLessThanOrEqual(Math.max(close * Math.abs(growth), 1e-37));
        });
      }),
      { numRuns: 30 },
    );
    const special = [0, -1e4, 1e4, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY, Number.NaN];
    expect(run({ output: a.exp() }, precision, special).values).toEqual([1, 0, Infinity, 0, Infinity, Number.NaN]);
  });

  test("an array of any length is computed to its end and counted once", () => {
    const counted = a.above(2);
    for (const length of [0, 1, 2, 3, 4, 5, 7, 4095, 4096, 4097, 9001]) {
      const values = Array.from({ length }, (_, index) => index % 5);
      const found = run({ output: a.times(2), sums: [a, a.times(a)], counts: [counted] }, precision, values);
      expect(found.values).toEqual(values.map((value) => 2 * value));
      const sum = (of: (value: number) => number) => values.reduce((total, value) => total + of(value), 0);
      expect(found.totals).toEqual([sum((x) => x), sum((x) => x * x), sum((x) => Number(x > 2))]);
    }
  });
});

test("a part of an array is written where it is asked for, and nothing beside it", () => {
  const kernel = compile({ output: a.plus(b), sums: [], counts: [] }, "float32");
  const to = new Float32Array(6).fill(9);
  const spans = {
    a: { values: Float32Array.of(5, 1, 2, 3), from: 1 },
    b: { values: Uint8Array.of(0, 0, 1, 0, 1), from: 2 },
  };
  kernel.run(3, spans, {}, { values: to, from: 2 });
  expect([...to]).toEqual([9, 9, 2, 2, 4, 9]);
});

test("sums of many float32 are added in float64", () => {
  const values = new Float32Array(4096).fill(1 / 3);
  const kernel = compile({ output: a, sums: [a], counts: [] }, "float32");
  const [sum] = kernel.run(4096, { a: { values, from: 0 } }, {}, { values: new Float32Array(4096), from: 0 });
  expect(sum! / (4096 * Math.fround(1 / 3))).toBeCloseTo(1, 13);
});
