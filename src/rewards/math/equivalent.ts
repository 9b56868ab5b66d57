/** Whether two answers say the same: numbers, expressions, tuples, intervals, sets, equations, else words. */
import { uniforms } from "../../random.ts";
import { type Cleaned, cleanLatex } from "./clean-latex.ts";
import { type Expression, parseExpression } from "./parse.ts";
import { decimalOf, divide, equal, real, type Value } from "./rational.ts";
import { splitTop, splitUnion, unbracket } from "./split.ts";

/** Longer than any answer; beyond it only the words are compared. */
const longest = 2000;

/**
 * Compares by value: `1/2`, `0.5`, `\frac12` and `50\%` are equal, `0.3333` and `1/3` are not. Expressions with variables
 * are equal when they agree at points drawn from a fixed seed. Lists and sets have no order, tuples and intervals do.
 *
 * @example mathEquivalent("(x+1)^2", "x^2 + 2x + 1") // true
 */
export function mathEquivalent(answer: string, expected: string): boolean {
  if (answer.length > longest || expected.length > longest) return sameText(answer, expected);
  const [left, right] = [cleanLatex(answer), cleanLatex(expected)];
  if (left.text === "" || right.text === "") return false;
  if (sameAnswer(left.text, right.text)) return true;
  return percentOf(left, right) || percentOf(right, left);
}

/** "50%" is 0.5 as well as what people write as 50. */
function percentOf(percent: Cleaned, plain: Cleaned): boolean {
  if (!percent.percent || plain.percent) return false;
  const [value, other] = [parseExpression(percent.text), parseExpression(plain.text)];
  if (!value || !other || value.variables.size + other.variables.size > 0) return false;
  return equal(divide(value.evaluate(new Map()), decimalOf(100)), other.evaluate(new Map()));
}

function sameAnswer(left: string, right: string): boolean {
  if (sameText(left, right)) return true;
  return sameUnion(left, right) ?? sameRelation(left, right) ?? sameList(left, right) ?? sameExpression(left, right);
}

const plainText = (text: string) => text.toLowerCase().replace(/[\s{}$]|\\text/g, "");
const sameText = (left: string, right: string) => plainText(left) === plainText(right);

function sameUnion(left: string, right: string): boolean | undefined {
  const [a, b] = [splitUnion(left), splitUnion(right)];
  if (a.length < 2 && b.length < 2) return undefined;
  return matchAll(a, b);
}

/** In some order, each of one to another of the other. */
function matchAll(left: readonly string[], right: readonly string[]): boolean {
  if (left.length !== right.length) return false;
  const rest = [...right];
  return left.every((part) => {
    const at = rest.findIndex((candidate) => sameAnswer(part, candidate));
    if (at >= 0) rest.splice(at, 1);
    return at >= 0;
  });
}

/** `x \in [1, 2]` and `x = 3` are what stands on the right; two whole equations are compared as equations. */
function sameRelation(left: string, right: string): boolean | undefined {
  const [a, b] = [relation(left), relation(right)];
  if (!a && !b) return undefined;
  if (a && !b) return a.names ? sameAnswer(a.right, right) : false;
  if (b && !a) return b.names ? sameAnswer(left, b.right) : false;
  const [one, other] = [a!, b!];
  const flipped = one.sign === opposite[other.sign];
  if (one.sign === other.sign && sameAnswer(one.left, other.left) && sameAnswer(one.right, other.right)) return true;
  if (flipped && sameAnswer(one.left, other.right) && sameAnswer(one.right, other.left)) return true;
  return one.sign === "=" && other.sign === "=" && sameEquation(one, other);
}

interface Relation {
  left: string;
  sign: string;
  right: string;
  /** The left side only names what the right side says. */
  names: boolean;
}
const opposite: Record<string, string> = { "=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<=" };
const relationSign = /\\leq?(?![a-z])|\\geq?(?![a-z])|\\in(?![a-z])|<=|>=|≤|≥|[<>=]/;
const signNames: Record<string, string> = {
  "\\le": "<=",
  "\\leq": "<=",
  "≤": "<=",
  "\\ge": ">=",
  "\\geq": ">=",
  "≥": ">=",
};

function relation(text: string): Relation | undefined {
  const found = relationSign.exec(text);
  if (!found || found.index === 0) return undefined;
  const [left, right] = [text.slice(0, found.index).trim(), text.slice(found.index + found[0].length).trim()];
  const sign = signNames[found[0]] ?? found[0];
  const names =
    (sign === "=" || sign === "\\in") && /^\\?[a-zA-Z]{1,2}(?:_\{?\w+\}?)?(?:\([a-z](?:, ?[a-z])*\))?$/.test(left);
  return { left, sign, right, names };
}

/** Equal when the difference of the sides is the same up to a constant factor. */
function sameEquation(one: Relation, other: Relation): boolean {
  const sides = [one.left, one.right, other.left, other.right].map(parseExpression);
  if (!sides.every((side) => side !== undefined)) return false;
  const [a, b, c, d] = sides as [Expression, Expression, Expression, Expression];
  const ratios = samplePoints([a, b, c, d]).map((point) => {
    const [left, right] = [a, c].map((side, index) => {
      return side.evaluate(point).approximate - (index === 0 ? b : d).evaluate(point).approximate;
    });
    return left! / right!;
  });
  const finite = ratios.filter(Number.isFinite);
  return (
    finite.length >= 4 && Math.abs(finite[0]!) > 1e-9 && finite.every((ratio) => equal(real(ratio), real(finite[0]!)))
  );
}

function sameList(left: string, right: string): boolean | undefined {
  const [a, b] = [unbracket(left), unbracket(right)];
  const [parts, others] = [splitTop(a.inner), splitTop(b.inner)];
  if (parts.length < 2 && others.length < 2 && a.kind !== "set" && b.kind !== "set") return samePlusMinus(left, right);
  const unordered = (kind: string) => kind === "set" || kind === "none";
  if (unordered(a.kind) && unordered(b.kind)) return matchAll(expand(parts), expand(others));
  if (a.open !== b.open || a.close !== b.close || parts.length !== others.length) return false;
  return parts.every((part, index) => sameAnswer(part, others[index]!));
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
    const [one, other] = [a.evaluate(point), b.evaluate(point)];
    // Outside of the domain of one of them: sqrt(x) below zero.
    if (!Number.isFinite(one.approximate) || !Number.isFinite(other.approximate)) continue;
    if (!equal(one, other)) return false;
    compared++;
  }
  return compared >= 4;
}

/** Above and below zero, so that x is not taken for |x|. */
function samplePoints(expressions: readonly Expression[]): Map<string, Value>[] {
  const random = uniforms(7);
  const names = [...new Set(expressions.flatMap(({ variables }) => [...variables]))].sort();
  return Array.from({ length: 16 }, (_, index) => {
    const sign = index % 2 === 0 ? 1 : -1;
    return new Map(names.map((name) => [name, real(sign * (0.5 + 2.5 * random()))]));
  });
}
