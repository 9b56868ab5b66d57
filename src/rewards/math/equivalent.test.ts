/** Wrong answers that were once rewarded because spaces, braces, units or signs were dropped before the comparison. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { mathEquivalent } from "./equivalent.ts";

test.each<[string, string]>([
  ["\\frac{1}{23}", "\\frac{12}{3}"],
  ["2^{1}0", "2^{10}"],
  ["1 1/2", "11/2"],
  ["\\sqrt{2}3", "\\sqrt{23}"],
  ["\\frac{x}{y}z", "\\frac{x}{yz}"],
  ["-1 0", "-10"],
  ["1 0", "0"],
  ["1.2.3", "0.36"],
  ["x2", "x^2"],
  ["x_{1}2", "x_{12}"],
  ["x_{1,2}", "x_{12}"],
  ["9007199254740993", "9007199254740992"],
  ["x + 10^{30}", "x + 10^{30} + 1"],
  ["e^{-30}", "0"],
  ["e^{-1000}", "0"],
  ["e^{-1000}", "e^{-2000}"],
  ["\\exp(-1000)", "0"],
  ["\\pi \\cdot 10^{-290}", "0"],
  ["\\pi \\cdot 10^{-290}", "\\pi \\cdot 10^{-291}"],
  ["|-10^{-400}|", "-10^{-400}"],
  ["10^{-400}", "0"],
  ["10^{-400}", "10^{-401}"],
  ["\\pi \\cdot 2^{-1000} \\cdot 2^{-1000}", "0"],
  ["\\frac{e^{-600}}{e^{600}}", "\\frac{e^{-601}}{e^{600}}"],
  ["3!!", "720"],
  [`1.${"0".repeat(400)}1`, "1"],
  [`1.${"0".repeat(1400)}1`, "1"],
  ["0.99^{365} + 10^{-30}", "0.99^{365}"],
  ["e^{-30}", "e^{-40}"],
  ["10^{20}\\pi - 10^{20}\\pi", "7"],
  ["\\sqrt{2}", "1.41421356237"],
  ["7e0", "6e0"],
  ["\\sin 2x", "x\\sin 2"],
  ["\\sin^{-1} x", "\\frac{1}{\\sin x}"],
  ["\\sin 30^\\circ", "\\sin 30"],
  ["90^\\circ5", "905"],
  ["-3\\frac{1}{2}", "-2.5"],
  ["2^3\\frac{1}{2}", "8.5"],
  ["√23", "3√2"],
  ["\\lfloor x\\rfloor y", "\\lfloor y\\rfloor x"],
  ["1\\overline{2}", "2\\overline{1}"],
  ["[100,200]", "[100200]"],
  ["\\$5\\$3", "53"],
  ["$5", "5 cents"],
  ["5 cm", "5 m"],
  ["5 cm", "5 cm^2"],
  ["2h", "2"],
  ["x_2 m", "x_2"],
  ["1.5 million", "1.5"],
  ["\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}"],
  ["\\begin{pmatrix} 1 \\\\ 23 \\end{pmatrix}", "\\begin{pmatrix} 12 \\\\ 3 \\end{pmatrix}"],
  ["listen", "silent"],
  ["x", "X"],
  ["AB", "ab"],
  ["101_2", "101_3"],
])("%s does not equal %s", (left, right) => {
  expect(mathEquivalent(left, right)).toBe(false);
  expect(mathEquivalent(right, left)).toBe(false);
});

test.each<[string, string]>([
  ["-0.0", "0"],
  ["\\pi \\cdot 10^{-290}", "\\frac{\\pi}{10^{290}}"],
  ["10^{-400}", "\\frac{1}{10^{400}}"],
  ["-0", "0.00"],
  ["\\sin^2 1 + \\cos^2 1 - 1", "0"],
  ["1 1/2", "3/2"],
  ["-3\\frac{1}{2}", "-7/2"],
  ["3 \\frac12", "3.5"],
  ["\\sin 2x", "2\\sin x\\cos x"],
  ["\\sin 30^\\circ", "1/2"],
  ["180^\\circ", "\\pi"],
  ["\\sin^{-1}(x/3)", "\\arcsin(\\frac{x}{3})"],
  ["6.02e3", "6020"],
  ["10,\\!000", "10000"],
  ["1\\,000\\,000", "10^6"],
  ["(100,200)", "(100, 200)"],
  ["5m", "5 m"],
  ["5 cm^2", "5 square centimeters"],
  ["5 cm, 6 cm", "5, 6"],
  ["\\$5", "5 dollars"],
  ["1.5 million", "1500000"],
  ["\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"],
  ["No", "no"],
  ["+\\infty", "\\infty"],
  ["101_{2}", "101_2"],
  ["\\sqrt{2}3", "3\\sqrt{2}"],
])("%s equals %s", (left, right) => {
  expect(mathEquivalent(left, right)).toBe(true);
  expect(mathEquivalent(right, left)).toBe(true);
});

/** Pairs that are the same text without spaces and braces: the parts as text, and the value as a number. */
const squeezed: [string, (a: string, b: string) => [string, number], (a: string, b: string) => [string, number]][] = [
  ["\\frac{a}{bc}", (a, b) => [`\\frac{${a}}{${b}7}`, +a / +`${b}7`], (a, b) => [`\\frac{${a}${b}}{7}`, +(a + b) / 7]],
  ["a^{b}c", (a, b) => [`${a}^{${b}}3`, (+a) ** +b * 3], (a, b) => [`${a}^{${b}3}`, (+a) ** +`${b}3`]],
  ["a b/c", (a, b) => [`${a} ${b}/9`, +a + +b / 9], (a, b) => [`${a}${b}/9`, +(a + b) / 9]],
  [
    "\\sqrt{a}b",
    (a, b) => [`\\sqrt{${a}}${b}`, Math.sqrt(+a) * +b],
    (a, b) => [`\\sqrt{${a}${b}}`, Math.sqrt(+(a + b))],
  ],
  ["-a b", (a, b) => [`-${a} ${b}`, Number.NaN], (a, b) => [`-${a}${b}`, -(a + b)]],
  ["a . b", (a, b) => [`${a} .${b}`, Number.NaN], (a, b) => [`${a}.${b}`, +`${a}.${b}`]],
  ["a{b}", (a, b) => [`${a}{${b}}`, +a * +b], (a, b) => [`${a}${b}`, +(a + b)]],
  ["\\frac ab", (a, b) => [`\\frac{${a}}{${b}}1`, +a / +b], (a, b) => [`\\frac{${a}}{${b}1}`, +a / +`${b}1`]],
];

test.each(squeezed)("dropping spaces and braces never merges two values: %s", (_shape, one, other) => {
  const digits = fc.integer({ min: 1, max: 99 }).map(String);
  fc.assert(
    fc.property(digits, digits, (a, b) => {
      const [[left, value], [right, another]] = [one(a, b), other(a, b)];
      fc.pre(value !== another);
      expect(mathEquivalent(left, right), `${left} and ${right}`).toBe(false);
      expect(mathEquivalent(right, left), `${right} and ${left}`).toBe(false);
    }),
    { seed: 12 },
  );
});

describe("spellings of fractions", () => {
  const whole = fc.integer({ min: -400, max: 400 });
  const positive = fc.integer({ min: 1, max: 40 });
  const style = fc.record({
    factor: positive,
    form: fc.nat({ max: 9 }),
    blank: fc.constantFrom("", " ", "\\,", "\\ ", "~"),
    around: fc.constantFrom("", "$", "\\boxed", "\\text", "{", "(", "\\left("),
  });
  const wrap: Record<string, (text: string) => string> = {
    "": (text) => text,
    $: (text) => `$${text}$`,
    "\\boxed": (text) => `\\boxed{${text}}`,
    "\\text": (text) => `x = ${text}`,
    "{": (text) => `{${text}}`,
    "(": (text) => `(${text})`,
    "\\left(": (text) => `\\left( ${text} \\right)`,
  };
  interface Style {
    factor: number;
    form: number;
    blank: string;
    around: string;
  }

  function spell(top: number, bottom: number, { factor, form, blank, around }: Style): string {
    const [p, q] = [top * factor, bottom * factor];
    const sign = p < 0 ? "-" : "";
    const [whole, rest] = [Math.floor(Math.abs(p) / q), Math.abs(p) % q];
    const mixed = whole > 0 && rest > 0;
    const forms = [
      `${p}/${q}`,
      `\\frac{${p}}${blank}{${q}}`,
      `\\dfrac${blank}{${blank}${p}${blank}}{${q}}`,
      `${sign}${blank}\\frac{${Math.abs(p)}}{${q}}`,
      mixed ? `${sign}${whole}${blank}\\frac{${rest}}{${q}}` : `${p} / ${q}`,
      mixed ? `${sign}${whole} ${rest}/${q}` : `${p} \\div ${q}`,
      `${p}${blank}\\cdot${blank} ${q}^{-1}`,
      `\\frac{1}{${q}}${blank}\\times ${p < 0 ? `(${p})` : p}`,
      `\\frac{${p - 1}}{${q}} + \\frac{1}{${q}}`,
      (1000 * p) % q === 0 ? String(p / q) : `${p}(${q})^{-1}`,
    ];
    return wrap[around]!(forms[form]!);
  }

  test("are equal if and only if their values are equal", () => {
    fc.assert(
      fc.property(whole, positive, whole, positive, style, style, (top, bottom, other, below, one, two) => {
        const [left, right] = [spell(top, bottom, one), spell(other, below, two)];
        expect(mathEquivalent(left, right), `${left} and ${right}`).toBe(top * below === other * bottom);
        const again = spell(top, bottom, two);
        expect(mathEquivalent(left, again), `${left} and ${again}`).toBe(true);
      }),
      { seed: 8, numRuns: 1500 },
    );
  });
});

test.each(["√", "\\sin", "-", "+", "|", "(", "{", "\\frac", "^-", "\\log_", "\\abs", "2^"])(
  "2,000 characters of %s are not an expression and do not overflow the stack",
  (piece) => {
    expect(mathEquivalent(`${piece.repeat(Math.floor(1990 / piece.length))}2`, "2")).toBe(false);
  },
);
