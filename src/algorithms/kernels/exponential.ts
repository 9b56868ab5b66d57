/** e^x and e^x - 1 of lanes, by `2^k e^r`, where r is at most half of ln 2 and its power series short. */
import { constant, type Lanes } from "./lanes.ts";
import type { Precision } from "./wasm.ts";

/** Where 2^k is 0 and infinite; ln 2 in two parts, of which the first times k is exact; terms of the series. */
const constants = {
  float32: { least: -88, most: 89, high: 0.693359375, low: -2.1219444005469057e-4, terms: 7 },
  float64: { least: -709, most: 710, high: 0.6931471803691238, low: 1.9082149292705877e-10, terms: 12 },
} as const;

/** What is below the precision's normal numbers is 0. */
export function exponential(kind: "exp" | "expm1", x: Lanes, precision: Precision): Lanes {
  const { least, most, high, low, terms } = constants[precision];
  const held = x.clamp(least, most);
  const k = held.times(Math.LOG2E).nearest();
  const r = held.minus(k.times(high)).minus(k.times(low));
  const growth = r.times(
    polynomial(
      Array.from({ length: terms }, (_, term) => constant(1 / factorial(term + 1))),
      r,
    ),
  );
  const power = k.powerOfTwo();
  return kind === "exp" ? growth.plus(1).times(power) : growth.times(power).plus(power.minus(1));
}

/** By pairs (Estrin): a processor computes them side by side, where in Horner's form each waits for the one before. */
function polynomial(coefficients: Lanes[], x: Lanes): Lanes {
  if (coefficients.length === 1) return coefficients[0]!;
  const pairs = coefficients.flatMap((low, index) => {
    const high = coefficients[index + 1];
    return index % 2 === 1 ? [] : [high === undefined ? low : low.plus(high.times(x))];
  });
  return polynomial(pairs, x.times(x));
}

const factorial = (n: number): number => (n === 0 ? 1 : n * factorial(n - 1));
