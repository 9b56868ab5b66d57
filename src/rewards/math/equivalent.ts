/**
 * Compares two answers: matrices, intervals and inequalities, lists, sets and tuples, equations, ratios, then values with units.
 * `notation.ts` cleans the text, `parse.ts` reads the values. docs/decisions/math-answers.md says what is equal and why.
 */
import { uniforms } from "../../base/values.ts";
import { cleanLatex, measure, sameUnit } from "./notation.ts";
import { type Expression, maxCharacters, parseExpression, sameTokens } from "./parse.ts";
import {
  compare,
  decimalOf,
  divide,
  equal,
  multiply,
  nested,
  spend,
  subtract,
  type Value,
  withBudget,
} from "./rational.ts";

/** About a tenth of a second; usual answers take a hundredth of that. */
const maxSteps = 30_000;

/**
 * Compares by value: `1/2`, `0.5`, `\frac12` and `50\%` are equal, `0.3333` and `1/3` are not. Expressions with variables
 * are equal if they agree at points drawn from a fixed seed. Lists and sets are unordered; tuples, vectors, matrices and
 * intervals are ordered. Other text is equal if its tokens are. Returns false if the comparison would take too long.
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

/** The first kind that one of the sides is decides. */
function sameAnswer(left: string, right: string): boolean {
  spend(10 + left.length + right.length);
  if (sameTokens(left, right) || sameWords(left, right)) return true;
  return nested(
    () =>
      sameMatrix(left, right) ??
      sameRegion(left, right) ??
      sameList(left, right) ??
      sameRelation(left, right) ??
      sameRatio(left, right) ??
      sameMeasure(left, right),
  );
}

/** Compares text of words, where "No" is "no". Single letters keep their case, since they are variables. */
const sameWords = (left: string, right: string) => /^[a-zA-Z' -]+$/.test(left) && foldWords(left) === foldWords(right);
const foldWords = (text: string) =>
  text.replace(/(?<![a-zA-Z])[A-Z][a-z]+|[a-zA-Z]{4,}/g, (word) => word.toLowerCase());

// Brackets.

const brackets =
  /\\(?:[{}|]|[lr](?:angle|floor|ceil|vert|Vert|brace|brack)(?![a-zA-Z])|begin(?![a-zA-Z])|end(?![a-zA-Z]))|[()[\]{}|]/g;
const opens = /^(?:[([{]|\\\{|\\l[a-zA-Z]+|\\begin)$/;

/** The places of the text that are in no bracket of any kind: `true` for each. Bars are brackets if their number is even. */
function outside(text: string): boolean[] {
  const places = new Array<boolean>(text.length).fill(true);
  const found = [...text.matchAll(brackets)];
  const bars = found.filter(([sign]) => sign === "|").length;
  let [depth, open, last] = [0, false, 0];
  const mark = (end: number) => {
    if (depth > 0) places.fill(false, last, end);
    last = end;
  };
  for (const { 0: sign, index } of found) {
    if (sign === "\\|" || (sign === "|" && bars % 2 === 1)) continue;
    mark(index);
    if (sign === "|") {
      depth += open ? -1 : 1;
      open = !open;
    } else depth += opens.test(sign) ? 1 : -1;
    places.fill(false, index, index + sign.length);
    last = index + sign.length;
  }
  mark(text.length);
  return places;
}

/** Splits at what the pattern finds outside of brackets. */
function splitOutside(text: string, separator: RegExp): string[] {
  const found = [...text.matchAll(separator)];
  if (found.length === 0) return [text];
  const places = outside(text);
  const parts: string[] = [];
  let start = 0;
  for (const { 0: sign, index } of found) {
    if (!places[index]) continue;
    parts.push(text.slice(start, index).trim());
    start = index + sign.length;
  }
  return [...parts, text.slice(start).trim()];
}

/** Splits at commas, semicolons, "and" and "or". @example splitTop("1, (2, 3) and 4") // ["1", "(2, 3)", "4"] */
const splitTop = (text: string) =>
  splitOutside(text, /(?:, ?)?(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|[,;]/g).filter((part) => part !== "");

interface Bracketed {
  kind: "none" | "tuple" | "set";
  open: string;
  close: string;
  inner: string;
}

const roundBrackets = new Map([
  ["\\langle", "("],
  ["\\rangle", ")"],
  ["\\lbrace", "\\{"],
  ["\\rbrace", "\\}"],
  ["\\lbrack", "["],
  ["\\rbrack", "]"],
]);

/** The content of brackets around the whole text. `(1,2]` is a tuple with two kinds of bracket. */
function unbracket(text: string): Bracketed {
  const none: Bracketed = { kind: "none", open: "", close: "", inner: text };
  const found = /^(\\\{|\\lbrace|\\langle|\\lbrack|[([{])([\s\S]*?)(\\\}|\\rbrace|\\rangle|\\rbrack|[)\]}])$/.exec(
    text,
  );
  if (!found) return none;
  const [open, inner, close] = [
    roundBrackets.get(found[1]!) ?? found[1]!,
    found[2]!,
    roundBrackets.get(found[3]!) ?? found[3]!,
  ];
  let depth = 0;
  for (const [sign] of inner.matchAll(brackets)) {
    if (sign === "|" || sign === "\\|") continue;
    if (opens.test(sign)) depth++;
    else if (--depth < 0) return none;
  }
  if (depth !== 0) return none;
  // Braces without a backslash are a set if they contain a list; around one value they only group.
  if (open === "{" && splitTop(inner).length < 2) return none;
  const isSet = open === "\\{" || open === "{";
  return { kind: isSet ? "set" : "tuple", open: isSet ? "{" : open, close: isSet ? "}" : close, inner: inner.trim() };
}

// Matrices.

const matrixText =
  /^(?:\[ ?)?\\begin ?\{([pbBvV]?matrix|smallmatrix|array)\} ?(?:\{[clr| ]*\})? ?([\s\S]*?)\\end ?\{\1\}(?: ?\])?(?: ?\^ ?(?:\{ ?)?(?:T|\\top|\\intercal)(?: ?\})?)?$/;

interface Matrix {
  /** Determinants and norms differ from matrices; kinds of bracket do not. */
  kind: string;
  rows: string[][];
}

/** A matrix, or a number before one. Tuples are columns. */
function matrix(text: string): Matrix | undefined {
  const start = text.search(/(?:\[ ?)?\\begin/);
  if (start < 0) return undefined;
  const [scale, body] = [
    text
      .slice(0, start)
      .trim()
      .replace(/(?:\*|\\cdot|\\times)$/, ""),
    text.slice(start),
  ];
  const found = matrixText.exec(body);
  if (!found || found[2]!.includes("\\begin") || /[=<>,]|\\in(?![a-z])/.test(scale)) return undefined;
  const kind = found[1] === "vmatrix" || found[1] === "Vmatrix" ? found[1] : "matrix";
  if (scale !== "" && (kind !== "matrix" || /[+-]./.test(scale) || (scale !== "-" && !parseExpression(scale))))
    return undefined;
  const times = (cell: string) => (scale === "" ? cell : scale === "-" ? `-(${cell})` : `(${scale})*(${cell})`);
  const written = found[2]!
    .trim()
    .replace(/\\\\$/, "")
    .split(/\\\\(?: ?\[[^\]]*\])?/);
  const rows = written.map((row) =>
    row
      .replace(/\\hline/g, "")
      .split("&")
      .map((cell) => times(cell.trim())),
  );
  const isTransposed = /(?:T|\\top|\\intercal)(?: ?\})?$/.test(body);
  return { kind, rows: isTransposed ? (rows[0] ?? []).map((_, at) => rows.map((row) => row[at] ?? "")) : rows };
}

function sameMatrix(left: string, right: string): boolean | undefined {
  const [a, b] = [matrix(left), matrix(right)];
  if (!a && !b) return undefined;
  const [one, other] = [a ?? column(left), b ?? column(right)];
  if (!one || !other) return /[=≈]|\\approx/.test(left + right) ? undefined : false;
  if (one.kind !== other.kind || one.rows.length !== other.rows.length) return false;
  return one.rows.every((row, at) => {
    const cells = other.rows[at] ?? [];
    return row.length === cells.length && row.every((cell, index) => sameAnswer(cell, cells[index] ?? ""));
  });
}

/** `(1, 2)` as a column, and `[[1, 2], [3, 4]]` as rows. */
function column(text: string): Matrix | undefined {
  const { kind, open, close, inner } = unbracket(text);
  const parts = splitTop(inner);
  if (kind !== "tuple" || parts.length < 2 || `${open}${close}` === "(]" || `${open}${close}` === "[)")
    return undefined;
  const rows = parts.map((part) => unbracket(part));
  if (rows.every((row) => row.kind === "tuple" && row.open === "["))
    return { kind: "matrix", rows: rows.map((row) => splitTop(row.inner)) };
  return { kind: "matrix", rows: parts.map((part) => [part]) };
}

// Intervals and inequalities.

interface Interval {
  open: string;
  low: string;
  high: string;
  close: string;
}

interface Region {
  /** Undefined for intervals without a variable. */
  variable: string | undefined;
  intervals: Interval[];
}

const relationSign = /\\(?:leq?(?:slant)?|geq?(?:slant)?|lt|gt|in|neq?|approx|equiv)(?![a-zA-Z])|<=|>=|[≤≥∈<>=≠≈]/g;
const signNames = new Map([
  ...Object.entries({ "\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">=" }),
  ...Object.entries({ "\\leqslant": "<=", "\\geqslant": ">=", "\\approx": "≈", "\\ne": "≠", "\\neq": "≠" }),
  ...Object.entries({ "\\lt": "<", "\\gt": ">", "∈": "\\in" }),
]);
const opposite = new Map(Object.entries({ "=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<=" }));

/** The sides of a relation outside of brackets, and the signs between them. */
function sidesOf(text: string): { sides: string[]; signs: string[] } {
  const places = outside(text);
  const found = [...text.matchAll(relationSign)].filter(({ index }) => places[index]);
  const signs = found.map(([sign]) => signNames.get(sign) ?? sign);
  const sides = found.map(({ index }, at) => {
    const before = found[at - 1];
    return text.slice(before ? before.index + before[0].length : 0, index).trim();
  });
  const last = found.at(-1);
  return { sides: [...sides, last ? text.slice(last.index + last[0].length).trim() : text], signs };
}

const everything: Interval = { open: "(", low: "-\\infty", high: "\\infty", close: ")" };
const isVariable = (text: string) =>
  /^(?:[a-zA-Z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?$/.test(text) && !/^(?:e|i|\\infty|\\pi|\\emptyset)$/.test(text);

/** A union of intervals, an inequality for one variable, or several of them; undefined for everything else. */
function region(text: string): Region | undefined {
  if (!/[<>≤≥≠∪∈[\](]|\\(?:l|g|n|in|cup|mathbb)|real/.test(text)) return undefined;
  const builder =
    /^\\(?:\{|lbrace) ?([a-zA-Z])(?: ?(?:\\in|∈) ?(?:\\mathbb ?\{? ?R ?\}?))? ?(?:\||\\mid|:|\\colon) ?([\s\S]*)\\(?:\}|rbrace)$/.exec(
      text,
    );
  if (builder) {
    const inside = region(builder[2]!.trim());
    return inside?.variable === builder[1] ? { variable: undefined, intervals: inside!.intervals } : undefined;
  }
  const unions = splitOutside(text, /\\cup(?![a-z])|∪|(?<![a-zA-Z])or(?![a-zA-Z])/g);
  if (unions.length > 1) return join(unions.map(region));
  const both = splitOutside(text, /(?<![a-zA-Z])and(?![a-zA-Z])|\\cap(?![a-z])|,/g);
  if (both.length === 2) {
    const [one, other] = both.map((part) => (sidesOf(part).signs.length === 1 ? region(part) : undefined));
    return one?.variable !== undefined && one.variable === other?.variable ? intersect(one, other) : undefined;
  }
  const membership = /^(.*?) ?(?:\\in(?![a-z])|∈) ?(.*)$/.exec(text);
  if (membership) {
    const inside = isVariable(membership[1]!) ? region(membership[2]!) : undefined;
    return inside && inside.variable === undefined ? { ...inside, variable: membership[1] } : undefined;
  }
  if (/^\\mathbb ?\{? ?R ?\}?$/.test(text) || /^(?:all )?real numbers?$/i.test(text))
    return { variable: undefined, intervals: [everything] };
  const { sides, signs } = sidesOf(text);
  if (signs.length > 0) return inequality(sides, signs);
  const { kind, open, close, inner } = unbracket(text);
  const ends = splitTop(inner);
  if (kind !== "tuple" || ends.length !== 2) return undefined;
  return { variable: undefined, intervals: [{ open, low: ends[0]!, high: ends[1]!, close }] };
}

/** `x > 2`, `1 < x \le 3` and `x \ne 2`. */
function inequality(sides: readonly string[], signs: readonly string[]): Region | undefined {
  const [low = "", middle = "", high = ""] = sides;
  const bracket = (sign: string | undefined, strict: string, closed: string) => (sign?.length === 1 ? strict : closed);
  const isAscending = (sign: string | undefined) => sign === "<" || sign === "<=";
  const isDescending = (sign: string | undefined) => sign === ">" || sign === ">=";
  const [first, second] = signs;
  if (signs.length === 2 && isVariable(middle)) {
    if (isDescending(first) && isDescending(second))
      return inequality([...sides].reverse(), [opposite.get(second!)!, opposite.get(first!)!]);
    if (!isAscending(first) || !isAscending(second)) return undefined;
    return {
      variable: middle,
      intervals: [{ open: bracket(first, "(", "["), low, high, close: bracket(second, ")", "]") }],
    };
  }
  if (signs.length !== 1) return undefined;
  if (isVariable(middle) && !isVariable(low))
    return opposite.has(first!) ? inequality([middle, low], [opposite.get(first!)!]) : undefined;
  if (!isVariable(low) || middle === "" || isVariable(middle)) return undefined;
  if (first === "≠")
    return {
      variable: low,
      intervals: [
        { ...everything, high: middle },
        { ...everything, low: middle },
      ],
    };
  if (isAscending(first))
    return { variable: low, intervals: [{ ...everything, high: middle, close: bracket(first, ")", "]") }] };
  if (isDescending(first))
    return { variable: low, intervals: [{ ...everything, low: middle, open: bracket(first, "(", "[") }] };
  return undefined;
}

function join(regions: readonly (Region | undefined)[]): Region | undefined {
  const [first] = regions;
  if (!first || regions.some((one) => one?.variable !== first.variable)) return undefined;
  return { variable: first.variable, intervals: regions.flatMap((one) => one!.intervals) };
}

/** A bound from below and one from above. */
function intersect(one: Region, other: Region): Region | undefined {
  const [low, high] = one.intervals[0]!.low === everything.low ? [other, one] : [one, other];
  const [from, to] = [low.intervals[0]!, high.intervals[0]!];
  if (low.intervals.length + high.intervals.length !== 2 || from.high !== everything.high || to.low !== everything.low)
    return undefined;
  if (from.low === everything.low || to.high === everything.high) return undefined;
  return { variable: one.variable, intervals: [{ open: from.open, low: from.low, high: to.high, close: to.close }] };
}

function sameRegion(left: string, right: string): boolean | undefined {
  const [a, b] = [region(left), region(right)];
  if (!a || !b) {
    const isUnion = (text: string) => splitOutside(text, /\\cup(?![a-z])|∪/g).length > 1;
    if (isUnion(left) || isUnion(right)) return matchAll(...unionsOf(left, right), sameAnswer);
    return undefined;
  }
  // Two tuples of two may be points or vectors; lists compare them.
  if (a.variable !== undefined && b.variable !== undefined && a.variable !== b.variable) return false;
  return matchAll(a.intervals, b.intervals, (one, other) => {
    return (
      one.open === other.open &&
      one.close === other.close &&
      sameAnswer(one.low, other.low) &&
      sameAnswer(one.high, other.high)
    );
  });
}

const unionsOf = (...texts: [string, string]) =>
  texts.map((text) => splitOutside(text, /\\cup(?![a-z])|∪/g)) as [string[], string[]];

// Lists, sets and tuples.

/** Whether the parts are equal in some order. */
function matchAll<Part>(
  left: readonly Part[],
  right: readonly Part[],
  same: (one: Part, other: Part) => boolean,
): boolean {
  if (left.length !== right.length) return false;
  const rest = [...right];
  return left.every((part) => {
    const at = rest.findIndex((candidate) => same(part, candidate));
    if (at >= 0) rest.splice(at, 1);
    return at >= 0;
  });
}

const matchInOrder = (left: readonly string[], right: readonly string[]) =>
  left.length === right.length && left.every((part, index) => sameAnswer(part, right[index] ?? ""));

function sameList(left: string, right: string): boolean | undefined {
  const [a, b] = [unbracket(left), unbracket(right)];
  const [parts, others] = [splitTop(a.inner), splitTop(b.inner)];
  if (parts.length < 2 && others.length < 2 && a.kind !== "set" && b.kind !== "set") return samePlusMinus(left, right);
  // A relation such as `x \in \{1, 2\}` or `(x, y) = (2, 3)`, and a list of the values.
  if (parts.length < 2 !== others.length < 2) {
    const [one, other] = parts.length < 2 ? [left, right] : [right, left];
    if (sidesOf(one).signs.length > 0) return statedValues(one).some((value) => sameAnswer(value, other));
  }
  const named = a.kind === "none" ? assignments(parts) : undefined;
  const otherNamed = b.kind === "none" ? assignments(others) : undefined;
  if (named && !otherNamed) return sameAssigned(named, b, others);
  if (otherNamed && !named) return sameAssigned(otherNamed, a, parts);
  const unordered = (kind: string) => kind === "set" || kind === "none";
  if (unordered(a.kind) && unordered(b.kind)) {
    // {5} as the solution 5; a set of a set, or of nothing, is another set.
    const isNested = (of: readonly string[]) =>
      of.length === 1 && (of[0] === "\\emptyset" || unbracket(of[0]!).kind === "set");
    if (a.kind !== b.kind && (isNested(parts) || isNested(others))) return false;
    const isPlain = a.kind === "none" && b.kind === "none";
    return matchAll(expand(parts), expand(others), isPlain ? sameAnswer : sameElement);
  }
  if (a.open !== b.open || a.close !== b.close) return false;
  return matchInOrder(parts, others);
}

/** Of sets: {5} is the solution 5, but not as an element. */
const sameElement = (left: string, right: string) =>
  (unbracket(left).kind === "set") === (unbracket(right).kind === "set") && sameAnswer(left, right);

interface Assigned {
  values: string[];
  /** `x_1 = 2, x_2 = 5` are the solutions 2 and 5 in any order. */
  isUnordered: boolean;
}

/** `x = 2, y = 5` is the point (2, 5), and 2, 5 in this order. */
function sameAssigned(
  { values, isUnordered }: Assigned,
  { kind, open }: Bracketed,
  others: readonly string[],
): boolean {
  if (isUnordered && kind !== "tuple") return matchAll(values, others, sameAnswer);
  return kind !== "set" && open !== "[" && matchInOrder(values, others);
}

/** The values of `x = 2, y = 5` in the order of single letters, else as written; undefined if names repeat or are missing. */
function assignments(parts: readonly string[]): Assigned | undefined {
  if (parts.length < 2) return undefined;
  const named: { name: string; value: string }[] = [];
  for (const part of parts) {
    const { sides, signs } = sidesOf(part);
    if (signs.length === 0 || signs.some((sign) => sign !== "=") || !isName(sides[0]!)) return undefined;
    named.push({ name: sides[0]!, value: sides.at(-1)! });
  }
  if (new Set(named.map(({ name }) => name)).size < named.length) return undefined;
  if (named.every(({ name }) => /^[a-z]$/i.test(name))) named.sort((one, other) => (one.name < other.name ? -1 : 1));
  const letters = new Set(named.map(({ name }) => /^([a-z])_ ?\{?\d\}?$/i.exec(name)?.[1] ?? name));
  return { values: named.map(({ value }) => value), isUnordered: letters.size === 1 };
}

const hasPlusMinus = (text: string) => /\\pm(?![a-z])|±/.test(text);

function samePlusMinus(left: string, right: string): boolean | undefined {
  if (!hasPlusMinus(left) && !hasPlusMinus(right)) return undefined;
  return matchAll(expand([left]), expand([right]), sameAnswer);
}

const expand = (parts: readonly string[]) =>
  parts.flatMap((part) =>
    hasPlusMinus(part) ? ["+", "-"].map((sign) => part.replaceAll(/\\pm(?![a-z])|±/g, ` ${sign} `)) : [part],
  );

// Equations and other relations.

/** `x`, `f(x)`, `y'`, `\vec{v}`, `(x, y)`, "Area" and other names of what the right side is. */
const isName = (text: string) =>
  /^\\?[a-zA-Z]{1,2}'*(?:_ ?\{?\w+\}?)?(?: ?\([a-zA-Z\d](?:, ?[a-zA-Z\d])*\))?$/.test(text) ||
  /^\( ?[a-zA-Z](?:_\w)?(?: ?, ?[a-zA-Z](?:_\w)?)* ?\)$/.test(text) ||
  /^\\(?:vec|hat|bar|overline|overrightarrow|angle|measuredangle|widehat|triangle) ?(?:\{ ?[a-zA-Z]+ ?\}|[a-zA-Z]+)(?:_\w)?$/.test(
    text,
  ) ||
  /^m ?\\angle ?[A-Z]+$|^(?:\|[A-Z]{2}\||[A-Z]{2,4})$/.test(text) ||
  /^\\frac ?\{ ?d ?[a-z]? ?\} ?\{ ?d ?[a-z] ?\}$|^[A-Za-z] ?\([^()=]{1,30}\)$/.test(text) ||
  /^(?:(?:the|of|for|and|in) |[A-Za-z]{3,} ?)+$/.test(text);

/**
 * The value that a chain of equalities states: the last side of `S = \frac{9 \cdot 10}{2} = 45`, of `m + n = 293` and of
 * `12 + 30 = 42`. Undefined for an equation such as `2x = 10` or `x^2 + y^2 = 25`, and if numbers of the chain differ.
 */
function statedValues(text: string): string[] {
  const { sides, signs } = sidesOf(text);
  const [first = ""] = sides;
  const last = sides.at(-1)!;
  if (signs.length === 0 || sides.includes("")) return [];
  if (signs.length === 1 && signs[0] === "\\in") return isName(first) ? [last] : [];
  if (!signs.every((sign) => sign === "=" || sign === "≈")) return [];
  const rough = signs.indexOf("≈");
  const exact = sides[rough < 0 ? sides.length - 1 : rough]!;
  const constants = sides.slice(0, rough < 0 ? sides.length : rough + 1).map(constant);
  const end = constants.at(-1);
  if (end && constants.some((value) => value && compare(value, end) !== true)) return [];
  const read = parseExpression(first);
  const names = [...(read?.variables ?? [])];
  const isQuantity =
    isName(first) ||
    (rough === 0 && names.length === 0) ||
    (read === undefined
      ? /\\(?:angle|overline|text|sum|int|frac)|[a-z]{4}|\|/i.test(first) && !/^[\d-]/.test(first)
      : names.length === 0 && !!end) ||
    (names.length > 1 && end !== undefined && (!/[xy]/.test(first) || /^[a-z](?: ?[+-]? ?[a-z])+$/.test(first)));
  if (!isQuantity) return [];
  if (rough < 0 || (rough === 0 && isName(first))) return [last];
  // The rounded value only if it rounds the exact one.
  const [value, rounded] = [constant(exact), constant(last)];
  const isClose =
    value && rounded && Math.abs(value.approximate - rounded.approximate) <= 0.01 * Math.abs(value.approximate);
  return isClose ? [exact, last] : value && rounded ? [] : [exact];
}

function constant(text: string): Value | undefined {
  const read = parseExpression(measure(text).text);
  return read?.variables.size === 0 ? read.evaluate(new Map()) : undefined;
}

/** A relation equals a bare value if it states the value; two relations are compared as relations. */
function sameRelation(left: string, right: string): boolean | undefined {
  const [a, b] = [sidesOf(left), sidesOf(right)];
  if (a.signs.length + b.signs.length === 0) return undefined;
  if (b.signs.length === 0) return statedValues(left).some((value) => sameAnswer(value, right));
  if (a.signs.length === 0) return statedValues(right).some((value) => sameAnswer(left, value));
  const [one, other] = [ends(a), ends(b)];
  if (!one || !other) return matchInOrder(a.sides, b.sides) && a.signs.join() === b.signs.join();
  const flipped = one.sign === opposite.get(other.sign);
  if (one.sign === other.sign && sameAnswer(one.left, other.left) && sameAnswer(one.right, other.right)) return true;
  if (flipped && sameAnswer(one.left, other.right) && sameAnswer(one.right, other.left)) return true;
  return one.sign === "=" && other.sign === "=" && sameEquation(one, other);
}

interface Relation {
  left: string;
  sign: string;
  right: string;
}

/** The first and the last side of a chain of equalities; undefined for other chains. */
function ends({ sides, signs }: { sides: string[]; signs: string[] }): Relation | undefined {
  const [sign = ""] = signs;
  if (signs.length > 1 && signs.some((one) => one !== "=")) return undefined;
  return sides.includes("") ? undefined : { left: sides[0]!, sign, right: sides.at(-1)! };
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

/** `3:4` is `6:8` and the fraction; `5:05` is a time of day. */
function sameRatio(left: string, right: string): boolean | undefined {
  const [a, b] = [splitOutside(left, /:/g), splitOutside(right, /:/g)];
  if (a.length < 2 && b.length < 2) return undefined;
  if (/:0\d/.test(left + right)) return false;
  const [values, others] = [a.map(constant), b.map(constant)];
  if ([...values, ...others].some((value) => value === undefined)) return false;
  const [one, other] = [values as Value[], others as Value[]];
  if (one.length === 2 && other.length === 1) return equal(divide(one[0]!, one[1]!), other[0]!);
  if (other.length === 2 && one.length === 1) return equal(divide(other[0]!, other[1]!), one[0]!);
  return (
    one.length === other.length &&
    one.every((value, at) => equal(multiply(value, other[0]!), multiply(other[at]!, one[0]!)))
  );
}

// Values with units.

/** A bare value equals the same value with any unit; "5 cm" is not "5 m". */
function sameMeasure(left: string, right: string): boolean {
  if (sameExpression(left, right)) return true;
  const [a, b] = [measure(left), measure(right)];
  if (a.unit === undefined && b.unit === undefined) return false;
  if (a.unit !== undefined && b.unit !== undefined && !sameUnit(a.unit, b.unit)) return false;
  if (isAngle(a.text) || isAngle(b.text)) return false;
  // 0.45% is not 0.45, although 45% is a usual spelling of an answer of 45.
  if ((a.unit === "%") !== (b.unit === "%") && Math.abs(constant(a.text)?.approximate ?? 1) < 1)
    return a.unit === "%" ? isPercentOf(a.text, b.text) : isPercentOf(b.text, a.text);
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
