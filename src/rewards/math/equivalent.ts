/** Splits an answer such as "5 cm^2" or "$5" into its value and its unit. */
import { uniforms } from "../../base/values.ts";
import { type Expression, maxCharacters, parseExpression, sameTokens } from "./parse.ts";
import { compare, decimalOf, divide, equal, nested, spend, subtract, type Value, withBudget } from "./rational.ts";

const spellings: Record<string, string> = {
  "°": "degree|degrees|deg",
  "%": "percent",
  $: "dollar|dollars",
  "€": "euro|euros",
  "£": "",
  cent: "cents",
  cm: "centimeter|centimeters|centimetre|centimetres",
  mm: "millimeter|millimeters|millimetre|millimetres",
  km: "kilometer|kilometers|kilometre|kilometres",
  m: "meter|meters|metre|metres",
  mi: "mile|miles",
  ft: "foot|feet",
  in: "inch|inches",
  yd: "yard|yards",
  kg: "kilogram|kilograms",
  g: "gram|grams",
  mg: "milligram|milligrams",
  lb: "pound|pounds|lbs",
  oz: "ounce|ounces",
  ton: "tons",
  s: "sec|secs|second|seconds",
  min: "mins|minute|minutes",
  h: "hr|hrs|hour|hours",
  day: "days",
  week: "weeks",
  month: "months",
  year: "years|yr|yrs",
  unit: "units",
  mph: "",
  "km/h": "",
  "m/s": "",
  L: "liter|liters|litre|litres",
  ml: "milliliter|milliliters|millilitre|millilitres",
  N: "",
  J: "",
  W: "",
  Hz: "",
  K: "",
  point: "points",
  person: "people",
  student: "students",
  way: "ways",
  time: "times",
  apple: "apples",
  book: "books",
  ball: "balls",
  marble: "marbles",
  cookie: "cookies",
  coin: "coins",
  egg: "eggs",
  page: "pages",
};

const units = new Map(
  Object.entries(spellings).flatMap(([unit, others]) =>
    [unit, ...others.split("|")].map((name) => [name, unit] as const),
  ),
);
units.delete("");

const trailing =
  /(?<=[\d})\] ]) ?((?:sq|square|cubic)\.? )?([A-Za-z]+(?:\/[a-z])?|\\?[%$]|[€£°]) ?(?:\^ ?(?:\{ ?([23]) ?\}|([23]))|([²³]))?$/;
const leading = /^(-? ?)([$€£]) ?(?=[\d.])/;
const powers = new Map(Object.entries({ sq: "2", square: "2", cubic: "3", "²": "2", "³": "3" }));

interface Measure {
  text: string;
  /** Undefined for a bare value. Spellings of a unit are unified; units are not converted. */
  unit: string | undefined;
}

function measure(text: string): Measure {
  const money = leading.exec(text);
  if (money) return { text: `${money[1]}${text.slice(money[0].length)}`, unit: units.get(money[2] ?? "") };
  const found = trailing.exec(text);
  const none = { text, unit: undefined };
  if (!found) return none;
  const [, prefix, name = "", braced, digit, raised] = found;
  const unit = units.get(name.replace("\\", "")) ?? units.get(name.toLowerCase());
  const value = text.slice(0, found.index).trim();
  if (unit === undefined || value === "" || (isLetter(name) && !isNumber(text.slice(0, found.index), found[0])))
    return none;
  const dimension = powers.get((prefix ?? "").trim().replace(".", "")) ?? powers.get(raised ?? "") ?? braced ?? digit;
  return { text: value, unit: dimension === undefined ? unit : `${unit}^${dimension}` };
}

/** "5m" and "x m" may be products; "5 m" is five meters. */
const isLetter = (name: string) => /^[A-Za-z]{1,2}$/.test(name);
const isNumber = (before: string, unit: string) =>
  (before.endsWith(" ") || unit.startsWith(" ")) && parseExpression(before)?.variables.size === 0;

// Splits lists, tuples, intervals and unions at commas outside of brackets.

const opening = new Set(["(", "[", "{"]);
const closing = new Set([")", "]", "}"]);

/** Splits at top-level commas, semicolons, "and" and "or". @example splitTop("1, (2, 3) and 4") // ["1", "(2, 3)", "4"] */
function splitTop(text: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let start = 0;
  const cut = (index: number, length: number) => {
    parts.push(text.slice(start, index).trim());
    start = index + length;
  };
  for (let index = 0; index < text.length; index++) {
    const character = text.charAt(index);
    if (opening.has(character)) depth++;
    else if (closing.has(character)) depth--;
    else if (depth === 0 && (character === "," || character === ";")) cut(index, 1);
    else if (depth === 0 && character === " ") {
      const word = /^ (?:and|or) /.exec(text.slice(index, index + 5));
      if (word) cut(index, word[0].length - 1);
    }
  }
  cut(text.length, 0);
  return parts.filter((part) => part !== "");
}

const splitUnion = (text: string) => text.split(/\\cup(?![a-z])|∪/).map((part) => part.trim());

interface Bracketed {
  kind: "none" | "tuple" | "set";
  open: string;
  close: string;
  inner: string;
}

/** The content of brackets around the whole text. `(1,2]` is a tuple with two kinds of bracket. */
function unbracket(text: string): Bracketed {
  const none: Bracketed = { kind: "none", open: "", close: "", inner: text };
  const found = /^(\\\{|\\lbrace|[([{])([\s\S]*?)(\\\}|\\rbrace|[)\]}])$/.exec(text);
  if (!found) return none;
  const [, open, inner, close] = found as unknown as [string, string, string, string];
  let depth = 0;
  for (const character of inner) {
    if (opening.has(character)) depth++;
    else if (closing.has(character) && --depth < 0) return none;
  }
  if (depth !== 0) return none;
  // Braces without a backslash are a set if they contain a list; around one value they only group.
  if (open === "{" && splitTop(inner).length < 2) return none;
  const isSet = open === "\\{" || open === "\\lbrace" || open === "{";
  return { kind: isSet ? "set" : "tuple", open: isSet ? "{" : open, close: isSet ? "}" : close, inner };
}

// Removes math delimiters, spacing and fonts from an answer. Never joins two tokens.

/** The first alternative is a line break, so that its second backslash does not start a command. */
const spacing =
  /\\\\|\\(?:[!,;:> ]|(?:quad|qquad|displaystyle|limits|[bB]igl?|[bB]igr)(?![a-zA-Z])|(?:left|right)(?:\.|(?![a-zA-Z])))|~/g;
const textCommand =
  /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname|rm|bf)\s?\{([^{}]*)\}/g;
const degrees = /\^ ?(?:\\circ(?![a-zA-Z])|\{ ?\\circ ?\})|\\degree(?![a-zA-Z])|\\deg(?![a-zA-Z])/g;

const multiples = new Map([
  ["thousand", "1000"],
  ["million", "1000000"],
  ["billion", "1000000000"],
]);

/** @example cleanLatex("$\\boxed{1{,}234\\text{ cm}^2}$") // "1234 cm ^2" */
function cleanLatex(answer: string): string {
  const text = unwrap(squeeze(answer))
    .replace(/\{,\}(?=\d{3})|,\\!(?=\d{3})|(?<=\d)\\,(?=\d{3}(?!\d))/g, "")
    .replaceAll("{,}", ",")
    .replace(spacing, (found) => (found === "\\\\" ? found : " "))
    .replace(textCommand, " $1 ")
    .replaceAll("\\$", " $ ")
    .replace(degrees, " ° ")
    .replace(
      /(?<=[\d}]) ?(thousand|million|billion)\b/gi,
      (_, word: string) => ` * ${multiples.get(word.toLowerCase())} `,
    );
  return withoutFullStops(joinThousands(squeeze(text)));
}

/** Collapses white space, so that later patterns cannot backtrack over blanks. */
const squeeze = (text: string) => text.replace(/\s+/g, " ").trim();

const wrappers = [
  ["$$", "$$"],
  ["$", "$"],
  ["\\(", "\\)"],
  ["\\[", "\\]"],
] as const;

/** Removes math delimiters and a box around the whole text. */
function unwrap(text: string): string {
  let inner = text;
  for (;;) {
    const bare = withoutFullStops(inner);
    const box = /^\\f?boxed ?\{/.exec(bare)?.[0];
    const mark = wrappers.find(
      ([open, close]) => bare.length > open.length + close.length && bare.startsWith(open) && bare.endsWith(close),
    );
    if (mark && !bare.slice(mark[0].length, -mark[1].length).includes(mark[0])) {
      inner = bare.slice(mark[0].length, -mark[1].length).trim();
    } else if (box !== undefined && closes(bare, box.length - 1)) inner = bare.slice(box.length, -1).trim();
    else return inner;
  }
}

/** Whether the brace at `open` is closed at the end of the text. */
function closes(text: string, open: number): boolean {
  let depth = 0;
  for (let index = open; index < text.length; index++) {
    if (text[index] === "{") depth++;
    else if (text[index] === "}" && --depth === 0) return index === text.length - 1;
  }
  return false;
}

function withoutFullStops(text: string): string {
  let end = text.length;
  while (end > 0 && ".; ".includes(text[end - 1] ?? "")) end--;
  return text.slice(0, end);
}

/** "1,234" is one number, except in brackets, as in "(1,234)"; "1, 234" is two. Braces only group. */
function joinThousands(text: string): string {
  const inside = new Set<number>();
  let depth = 0;
  for (let index = 0; index < text.length; index++) {
    const piece = text[index] === "\\" ? text.slice(index, index + 2) : text[index];
    if (piece === "(" || piece === "[" || piece === "\\{") depth++;
    else if (piece === ")" || piece === "]" || piece === "\\}") depth--;
    if (depth > 0 && text[index] === ",") inside.add(index);
  }
  return text.replace(/(?<![\d.])\d{1,3}(?:, ?\d{3})+(?!\d)/g, (written, at: number) => {
    const isList = written.includes(" ") || inside.has(at + written.indexOf(","));
    return isList ? written : written.replaceAll(",", "");
  });
}

// Compares two answers: numbers, expressions, tuples, intervals, sets, equations, otherwise words.

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
