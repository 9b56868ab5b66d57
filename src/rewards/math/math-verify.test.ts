/** Verdicts of math-verify on 628 pairs of answers, recorded by scripts/proofs/recorders/math-verify-verdicts.py. */
import { expect, test } from "vitest";
import { mathEquivalent } from "./equivalent.ts";
import recorded from "./math-verify.fixture.json" with { type: "json" };

/** Answer, expected answer, Hone's verdict. docs/decisions/math-answers.md says why. */
const deliberate: [string, string, boolean][] = [
  // A rounded decimal does not equal the exact number, even with 12 digits.
  ["1.41421356237", "\\sqrt{2}", false],
  ["\\sqrt{2}", "1.41421356237", false],
  ["1/3", "0.333333333333", false],
  ["0.1", "0.10000000001", false],
  ["\\pi", "3.14159265359", false],
  // Capital letters are different variables; units are compared.
  ["x", "X", false],
  ["AB", "ab", false],
  ["5 cm", "5 m", false],
  // A tuple is not a set.
  ["(1,2)", "\\{1,2\\}", false],
  // Mixed numbers, currencies, multiples, exponents and degrees as people write them.
  ["1 1/2", "3/2", true],
  ["5 dollars", "\\$5", true],
  ["1.5 million", "1500000", true],
  ["3e2", "300", true],
  ["\\sin 30^\\circ", "\\frac{1}{2}", true],
  // Functions are compared where both are defined.
  ["\\ln x^2", "2\\ln x", true],
];

test("agrees with math-verify, apart from the deliberate differences", () => {
  expect(recorded.pairs.length).toBeGreaterThan(600);
  const different = recorded.pairs.flatMap(([answer, expected, verdict]) => {
    const own = mathEquivalent(String(answer), String(expected));
    return own === verdict ? [] : [[answer, expected, own]];
  });
  const sorted = (pairs: unknown[][]) => pairs.map((pair) => JSON.stringify(pair)).sort();
  expect(sorted(different)).toEqual(sorted(deliberate));
});
