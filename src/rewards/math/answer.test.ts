import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { mathAnswer } from "./answer.ts";
import { mathEquivalent } from "./equivalent.ts";
import recorded from "./math-verify.fixture.json" with { type: "json" };

test.each<[string, string]>([
  ["1/2", "0.5"],
  ["\\frac12", "\\dfrac{1}{2}"],
  ["\\frac{2}{4}", "\\tfrac{1}{2}"],
  ["$\\frac{1}{2}$", "0.50"],
  ["-\\frac{3}{4}", "\\frac{-3}{4}"],
  ["3\\frac{1}{2}", "7/2"],
  ["1,234", "1234"],
  ["1{,}234{,}567", "1234567"],
  ["\\$1,000.00", "1000"],
  ["$5", "5"],
  ["50\\%", "50"],
  ["50%", "0.5"],
  ["12.5 percent", "12.5\\%"],
  ["90^\\circ", "90"],
  ["90^{\\circ}", "90 \\text{ degrees}"],
  ["5\\text{ cm}^2", "5"],
  ["12 \\mathrm{~cm}", "12"],
  ["10 miles", "10"],
  ["3 million", "3000000"],
  ["\\sqrt{8}", "2\\sqrt{2}"],
  ["\\sqrt2", "2^{1/2}"],
  ["\\sqrt[3]{27}", "3"],
  ["\\sqrt[3]{-8}", "-2"],
  ["\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"],
  ["2\\pi", "\\pi \\cdot 2"],
  ["2\\cdot 3", "6"],
  ["2^{10}", "1024"],
  ["5!", "120"],
  ["\\binom{5}{2}", "10"],
  ["(x+1)^2", "x^2+2x+1"],
  ["x(x-1)", "x^2 - x"],
  ["\\frac{x^2-1}{x-1}", "x+1"],
  ["\\sin^2 x + \\cos^2 x", "1"],
  ["\\log_2 8", "3"],
  ["e^{\\ln 2}", "2"],
  ["|{-3}|", "3"],
  ["x = 5", "5"],
  ["f(x) = 2x", "2x"],
  ["y = 2x + 1", "2x - y + 1 = 0"],
  ["x \\le 3", "3 >= x"],
  ["x \\in [1, 2)", "[1,2)"],
  ["(1, 2)", "\\left( 1, \\frac{4}{2} \\right)"],
  ["[0,\\infty)", "[0, \\infty)"],
  ["(-\\infty, 1) \\cup (2, \\infty)", "(2,\\infty)\\cup(-\\infty,1)"],
  ["\\{1, 2, 3\\}", "3, 1, 2"],
  ["2 and 3", "3, 2"],
  ["1 \\pm \\sqrt{2}", "1-\\sqrt{2}, 1+\\sqrt{2}"],
  ["x = \\pm 2", "2, -2"],
  ["\\text{Evelyn}", "evelyn"],
  ["\\boxed{7}", "7"],
  ["6.02e0", "6.02e0"],
  ["10000000000000000000001", "10000000000000000000001.0"],
  [".5", "1/2"],
  ["x_1 + x_2", "x_2 + x_{1}"],
])("%s equals %s", (left, right) => {
  expect(mathEquivalent(left, right)).toBe(true);
  expect(mathEquivalent(right, left)).toBe(true);
});

test.each<[string, string]>([
  ["0.3333", "1/3"],
  ["2/3", "0.6667"],
  ["1", "2"],
  ["1,2", "12"],
  ["1, 234", "1234"],
  ["x", "|x|"],
  ["x+1", "x"],
  ["\\sqrt{2}", "1.414"],
  ["(1, 2)", "(2, 1)"],
  ["[1, 2)", "[1, 2]"],
  ["(1, 2)", "\\{1, 2\\}"],
  ["1, 2", "1, 2, 3"],
  ["1, 1, 2", "1, 2, 2"],
  ["x < 3", "x > 3"],
  ["x \\le 3", "x < 3"],
  ["y = 2x", "y = 3x"],
  ["10000000000000000000001", "10000000000000000000002"],
  ["Evelyn", "Eve"],
  ["", "0"],
  ["\\frac{1}{0}", "\\frac{2}{0}"],
  ["50\\%", "50.5"],
  ["2 \\pm 1", "3"],
])("%s does not equal %s", (left, right) => {
  expect(mathEquivalent(left, right)).toBe(false);
  expect(mathEquivalent(right, left)).toBe(false);
});

test("a fraction equals its expanded form and no other fraction", () => {
  const whole = fc.integer({ min: -999, max: 999 });
  const positive = fc.integer({ min: 1, max: 99 });
  fc.assert(
    fc.property(whole, positive, positive, (top, bottom, factor) => {
      const extended = `\\frac{${top * factor}}{${bottom * factor}}`;
      return mathEquivalent(`${top}/${bottom}`, extended) && !mathEquivalent(`${top + 1}/${bottom}`, extended);
    }),
    { seed: 3 },
  );
});

test("odd and large texts are graded quickly", () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 60 }), fc.string({ maxLength: 60 }), (left, right) => {
      const verdict = mathEquivalent(left, right);
      return typeof verdict === "boolean" && verdict === mathEquivalent(right, left);
    }),
    { seed: 5, numRuns: 500 },
  );
  for (const large of [
    "9^{9^{9^{9}}}",
    "((((((9!)!)!)!)!)!)",
    "(".repeat(5000),
    "9".repeat(5000),
    "2^{99999999}",
    `${"-".repeat(3000)}1`,
  ]) {
    expect(mathEquivalent(large, "1")).toBe(false);
  }
});

describe("the answer in a reply", () => {
  test.each<[string, string | number | string[], number]>([
    ["first \\boxed{1}, no: \\boxed{\\frac{1}{2}}", "0.5", 1],
    ["\\boxed{3} </think> it is \\boxed{4}", 4, 1],
    ["<think>\\boxed{4}", 4, 0],
    ["<answer> 12 </answer>", "12", 1],
    ["it costs\n#### $1,200", "1200", 1],
    ["The answer is 7.", 7, 1],
    ["The final answer is: $\\sqrt{4}$.", 2, 1],
    ["so we get $x = 3$.", "3", 1],
    ["12 and then 13", 13, 1],
    ["It is between 3-5", 5, 1],
    ["so it is −5", 5, 0],
    ["so it is −5", -5, 1],
    ["\\boxed{1", 1, 0],
    ["nothing", 1, 0],
    ["\\boxed{2}", ["1", "2"], 1],
    ["\\boxed{2}", "The solution is \\boxed{2}", 1],
  ])("%s, expected %s: %d", (reply, expected, reward) => {
    expect(mathAnswer(reply, expected)).toMatchObject({ reward, correct: reward === 1 });
  });

  test("explains what it found and where; a box can be required", () => {
    expect(mathAnswer("\\boxed{3}", 4).explanation).toBe('"3" in \\boxed{} does not equal "4"');
    expect(mathAnswer("The answer is 4", 4, { boxed: true })).toMatchObject({ reward: 0 });
    expect(mathAnswer("\\boxed{4}", 4, { boxed: true })).toMatchObject({ reward: 1 });
    const [long, another] = [`${"(\\frac{x}{y}+z)^{9}".repeat(90)}y`, `y${"(z+\\frac{x}{y})^{9}".repeat(90)}`];
    expect(mathAnswer(`\\boxed{${long}}`, another).explanation).toContain("takes too long to compare with");
    expect(() => mathAnswer("1", "")).toThrow("mathAnswer expects an answer");
  });
});

/** Verdicts of math-verify on 628 pairs of answers, recorded by scripts/proofs/recorders/math-verify-verdicts.py. */

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
  // Repeating decimals, the imaginary unit, and an inequality of the interval's variable.
  ["0.\\overline{3}", "\\frac{1}{3}", true],
  ["i^2", "-1", true],
  ["1<x<2", "(1,2)", true],
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
