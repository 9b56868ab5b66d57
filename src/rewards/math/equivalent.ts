/** Compares two answers: numbers, expressions, tuples, intervals, sets, equations, otherwise words. */
import { uniforms } from "../../random.ts";
import { nested, spend, withBudget } from "./budget.ts";
import { cleanLatex } from "./clean-latex.ts";
import { measure } from "./measure.ts";
import { type Expression, maxCharacters, parseExpression } from "./parse.ts";
import { compare, decimalOf, divide, equal, subtract, type Value } from "./rational.ts";
import { splitTop, splitUnion, unbracket } from "./split.ts";
import { sameTokens } from "./tokens.ts";

/** About a tenth of a second; usual answers take a hundredth of that. */
const maxSteps = 30_000;

/**
 * Compares by value: `1/2`, `0.5`, `\frac12` and `50\%` are equal, `0.3333` and `1/3` are not. Expressions with variables
 * are equal if they agree at points drawn from a fixed seed. Lists and sets are unordered, tuples and intervals ordered.
 * Other text is equal if its tokens are. Returns false if the comparison would take too long.
 *
 * @example mathEquivalent("(x+1)^2", "x^2 + 2x + 1") // true
 */
export const mathEquivalent = (answer: string, expected: string): boolean => compareAnswers(answer, expected) === true;

/** @returns undefined if the comparison would take too long */
export function compareAnswers(answer: string, expected: string): boolean | undefined {
  if (answer.length > maxCharacters || expected.length > maxCharacters) return answer.trim() === expected.trim();
  const [left, right] = [cleanLatex(answer), cleanLatex(expected)];
  if (left === "" || right === "") return false;
  return withBudget(maxSteps, () => sameAnswer(left, right));
}

function sameAnswer(left: string, right: string): boolean {
  spend(10 + left.length + right.length);
  if (sameTokens(left, right) || sameWords(left, right)) return true;
  return nested(
    () => sameUnion(left, right) ?? sameRelation(left, right) ?? sameList(left, right) ?? sameMeasure(left, right),
  );
}

/** Compares text of words, where "No" is "no". Single letters keep their case, since they are variables. */
const sameWords = (left: string, right: string) => /^[a-zA-Z' -]+$/.test(left) && foldWords(left) === foldWords(right);
const foldWords = (text: string) =>
  text.replace(/(?<![a-zA-Z])[A-Z][a-z]+|[a-zA-Z]{4,}/g, (word) => word.toLowerCase());

/** A bare value equals the same value with any unit; "5 cm" is not "5 m". */
function sameMeasure(left: string, right: string): boolean {
  if (sameExpression(left, right)) return true;
  const [a, b] = [measure(left), measure(right)];
  if (a.unit === b.unit && a.unit === undefined) return false;
  if (a.unit !== undefined && b.unit !== undefined && a.unit !== b.unit) return false;
  if (isAngle(a.text) || isAngle(b.text)) return false;
  if (sameTokens(a.text, b.text) || sameExpression(a.text, b.text)) return true;
  if (a.unit === "%" && b.unit === undefined) return isPercentOf(a.text, b.text);
  return b.unit === "%" && a.unit === undefined && isPercentOf(b.text, a.text);
}

/** In "sin 30°" the degrees belong to the argument. */
const isAngle = (text: string) => /(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])/.test(text);

/** "50%" equals 0.5; it also equals a bare 50. */
function isPercentOf(percent: string, plain: string): boolean {
  const [value, other] = [parseExpression(percent), parseExpression(plain)];
  if (!value || !other || value.variables.size + other.variables.size > 0) return false;
  return equal(divide(value.evaluate(new Map()), decimalOf(100)), other.evaluate(new Map()));
}

function sameUnion(left: string, right: string): boolean | undefined {
  const [a, b] = [splitUnion(left), splitUnion(right)];
  if (a.length < 2 && b.length < 2) return undefined;
  return matchAll(a, b);
}

/** Whether the parts are equal in some order. */
function matchAll(left: readonly string[], right: readonly string[]): boolean {
  if (left.length !== right.length) return false;
  const rest = [...right];
  return left.every((part) => {
    const at = rest.findIndex((candidate) => sameAnswer(part, candidate));
    if (at >= 0) rest.splice(at, 1);
    return at >= 0;
  });
}

/** `x \in [1, 2]` and `x = 3` equal their right sides; two equations are compared as equations. */
function sameRelation(left: string, right: string): boolean | undefined {
  const [a, b] = [relation(left), relation(right)];
  if (!a && !b) return undefined;
  if (a && !b) return a.names ? sameAnswer(a.right, right) : false;
  if (b && !a) return b.names ? sameAnswer(left, b.right) : false;
  if (!a || !b) return false;
  const [one, other] = [a, b];
  const flipped = one.sign === opposite.get(other.sign);
  if (one.sign === other.sign && sameAnswer(one.left, other.left) && sameAnswer(one.right, other.right)) return true;
  if (flipped && sameAnswer(one.left, other.right) && sameAnswer(one.right, other.left)) return true;
  return one.sign === "=" && other.sign === "=" && sameEquation(one, other);
}

interface Relation {
  left: string;
  sign: string;
  right: string;
  /** The left side is only a name, such as `x` or `f(x)`. */
  names: boolean;
}
const opposite = new Map(Object.entries({ "=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<=" }));
const relationSign = /\\(?:leq?|geq?|lt|gt|in)(?![a-zA-Z])|<=|>=|[≤≥∈<>=]/;
const signNames = new Map([
  ...Object.entries({ "\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">=" }),
  ...Object.entries({ "\\lt": "<", "\\gt": ">", "∈": "\\in" }),
]);

function relation(text: string): Relation | undefined {
  const found = relationSign.exec(text);
  if (!found || found.index === 0) return undefined;
  const [left, right] = [text.slice(0, found.index).trim(), text.slice(found.index + found[0].length).trim()];
  const sign = signNames.get(found[0]) ?? found[0];
  const names =
    (sign === "=" || sign === "\\in") && /^\\?[a-zA-Z]{1,2}(?:_\{?\w+\}?)?(?:\([a-z](?:, ?[a-z])*\))?$/.test(left);
  return { left, sign, right, names };
}

/** Two equations are equal if the differences of their sides have the same ratio at all points. */
function sameEquation(one: Relation, other: Relation): boolean {
  const sides = [one.left, one.right, other.left, other.right]
    .map(parseExpression)
    .filter((side) => side !== undefined);
  const [a, b, c, d] = sides;
  if (!a || !b || !c || !d) return false;
  const zero = decimalOf(0);
  const ratios = samplePoints(sides).flatMap((point) => {
    const [left, right] = [
      subtract(a.evaluate(point), b.evaluate(point)),
      subtract(c.evaluate(point), d.evaluate(point)),
    ];
    const ratio = divide(left, right);
    return Number.isFinite(ratio.approximate) ? [ratio] : [];
  });
  const [first, ...rest] = ratios;
  if (first === undefined || rest.length < 3 || compare(first, zero) !== false) return false;
  return rest.every((ratio) => equal(ratio, first));
}

function sameList(left: string, right: string): boolean | undefined {
  const [a, b] = [unbracket(left), unbracket(right)];
  const [parts, others] = [splitTop(a.inner), splitTop(b.inner)];
  if (parts.length < 2 && others.length < 2 && a.kind !== "set" && b.kind !== "set") return samePlusMinus(left, right);
  const unordered = (kind: string) => kind === "set" || kind === "none";
  if (unordered(a.kind) && unordered(b.kind)) return matchAll(expand(parts), expand(others));
  if (a.open !== b.open || a.close !== b.close || parts.length !== others.length) return false;
  return parts.every((part, index) => sameAnswer(part, others[index] ?? ""));
}

const hasPlusMinus = (text: string) => /\\pm(?![a-z])|±/.test(text);

function samePlusMinus(left: string, right: string): boolean | undefined {
  if (!hasPlusMinus(left) && !hasPlusMinus(right)) return undefined;
  return matchAll(expand([left]), expand([right]));
}

const expand = (parts: readonly string[]) =>
  parts.flatMap((part) =>
    hasPlusMinus(part) ? ["+", "-"].map((sign) => part.replaceAll(/\\pm(?![a-z])|±/g, ` ${sign} `)) : [part],
  );

function sameExpression(left: string, right: string): boolean {
  const [a, b] = [parseExpression(left), parseExpression(right)];
  if (!a || !b) return false;
  if (a.variables.size + b.variables.size === 0) return equal(a.evaluate(new Map()), b.evaluate(new Map()));
  let compared = 0;
  for (const point of samplePoints([a, b])) {
    const verdict = compare(a.evaluate(point), b.evaluate(point));
    if (verdict === false) return false;
    // Undefined outside of the domain of an expression, such as sqrt(x) below zero.
    if (verdict) compared++;
  }
  return compared >= 4;
}

/** Points above and below zero, so that x differs from |x|. Fractions, so that polynomials are compared exactly. */
function samplePoints(expressions: readonly Expression[]): Map<string, Value>[] {
  const random = uniforms(7);
  const names = [...new Set(expressions.flatMap(({ variables }) => [...variables]))].sort();
  return Array.from({ length: 16 }, (_, index) => {
    const sign = index % 2 === 0 ? 1 : -1;
    return new Map(
      names.map((name) => [name, divide(decimalOf(sign * Math.floor(32 + 160 * random())), decimalOf(64))]),
    );
  });
}
