/** The filters and tests of jinja2. */

import {
  arithmetic,
  attribute,
  type Builtin,
  bind,
  escapeHtml,
  marked,
  member,
  pairOf,
  slice,
  textOf,
  undefinedMember,
} from "./members.ts";
import {
  capitalize,
  centered,
  fixed,
  indentation,
  isLower,
  isUpper,
  joinTexts,
  percent,
  replaceText,
  splitLines,
  stripText,
  toJson,
  whole,
} from "./texts.ts";
import {
  asInteger,
  type CallArguments,
  Callable,
  compare,
  contains,
  Dict,
  equals,
  fail,
  Generator,
  isIterable,
  isNumber,
  isTrue,
  iterate,
  lengthOf,
  letters,
  listOf,
  Markup,
  paid,
  represent,
  Special,
  sorted,
  spend,
  Tuple,
  typeName,
  Undefined,
  type Value,
  View,
  write,
} from "./values.ts";

// Filters.

/** `a.0.b` as a function that reads it. */
function getter(path: Value, otherwise?: Value): (value: Value) => Value {
  if (path === null || path === undefined) return (value) => value;
  const keys =
    typeof path === "string" ? path.split(".").map((key) => (/^\d+$/.test(key) ? BigInt(key) : key)) : [path];
  return (value) =>
    keys.reduce((object: Value, key) => {
      spend(1);
      const found = member(object, key, "item");
      return found instanceof Undefined && otherwise !== undefined && otherwise !== null ? otherwise : found;
    }, value);
}

const ignoringCase = (value: Value): Value => (typeof value === "string" ? paid(value).toLowerCase() : value);
const caseOf = (sensitive: Value) => (isTrue(sensitive) ? (value: Value) => value : ignoringCase);

const itemsOf = (value: Value, what: string): Dict =>
  value instanceof Dict ? value : fail("TypeError", `'${typeName(value)}' object has no attribute '${what}'`);

function extreme(value: Value, sensitive: Value, path: Value, sign: 1 | -1): Value {
  const [key, fold] = [getter(path), caseOf(sensitive)];
  let best: { item: Value; key: Value } | undefined;
  for (const one of iterate(value)) {
    const next = { item: one, key: fold(key(one)) };
    if (best === undefined || compare(next.key, best.key, sign > 0 ? ">" : "<") * sign > 0) best = next;
  }
  return best === undefined ? new Undefined("No aggregated item, sequence was empty.") : best.item;
}

function rounded(value: Value, precision: Value, how: Value): Value {
  if (how !== "common" && how !== "ceil" && how !== "floor")
    fail("FilterArgumentError", "method must be common, ceil or floor");
  if (!isNumber(value)) return fail("TypeError", `type ${typeName(value)} doesn't define __round__ method`);
  const decimals = whole(precision);
  const integer = asInteger(value);
  if (how === "common") {
    if (integer === undefined) {
      return Number.isFinite(value) && decimals < 400 ? Number(fixed(Number(value), decimals)) : value;
    }
    if (decimals >= 0) return integer;
    const unit = 10n ** BigInt(Math.min(4000, -decimals));
    const rest = ((integer % unit) + unit) % unit;
    const down = integer - rest;
    const up = rest * 2n > unit || (rest * 2n === unit && (down / unit) % 2n !== 0n);
    return up ? down + unit : down;
  }
  const factor = 10 ** decimals;
  return Math[how](Number(value) * factor) / factor;
}

/** Python's `int(text, base)`; undefined if it raises. */
function readInteger(given: string, base: number): bigint | undefined {
  const found = /^\s*([-+]?)(0[xob])?_?((?:[\da-z]+_)*[\da-z]+)\s*$/i.exec(paid(given));
  if (!found) return undefined;
  const [, sign, prefix = "", figures = ""] = found;
  const own = { "0x": 16, "0o": 8, "0b": 2 }[prefix.toLowerCase()];
  const used = base === 0 ? (own ?? 10) : base;
  const body = (own !== undefined && own !== used ? prefix + figures : figures).replaceAll("_", "");
  if (body.length > 4300) return undefined;
  let value = 0n;
  for (const figure of body.toLowerCase()) {
    const digit = Number.parseInt(figure, 36);
    if (!(digit < used)) return undefined;
    value = value * BigInt(used) + BigInt(digit);
  }
  return sign === "-" ? -value : value;
}

/** Python's `float(text)`; undefined if it raises. */
function readFloat(given: string): number | undefined {
  const trimmed = stripText(given, null, "both");
  if (/^[-+]?(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[-+]?\d+(?:_\d+)*)?$/i.test(trimmed)) {
    return Number(trimmed.replaceAll("_", ""));
  }
  const word = /^([-+]?)(inf|infinity|nan)$/i.exec(trimmed);
  if (!word) return undefined;
  const value = word[2]?.toLowerCase() === "nan" ? Number.NaN : Number.POSITIVE_INFINITY;
  return word[1] === "-" ? -value : value;
}

function toInteger(value: Value, otherwise: Value, base: Value): Value {
  if (value instanceof Undefined) return value.fail();
  const integer = asInteger(value);
  if (integer !== undefined) return integer;
  if (typeof value === "string") {
    const read = readInteger(value, whole(base));
    if (read !== undefined) return read;
  } else if (typeof value !== "number") return otherwise;
  const float = typeof value === "number" ? value : readFloat(value);
  if (float === undefined || Number.isNaN(float)) return otherwise;
  if (Number.isFinite(float)) return BigInt(Math.trunc(float));
  return typeof value === "number" ? fail("OverflowError", "cannot convert float infinity to integer") : otherwise;
}

function toFloat(value: Value, otherwise: Value): Value {
  if (value instanceof Undefined) return value.fail();
  if (isNumber(value)) return Number(value);
  return (typeof value === "string" ? readFloat(value) : undefined) ?? otherwise;
}

function quoteUrl(value: Value, inQuery: boolean): string {
  const bytes = Buffer.from(write(value), "utf8");
  spend(bytes.length);
  const safe = inQuery ? /[\w.~-]/ : /[\w.~/-]/;
  return Array.from(bytes, (byte) => {
    const letter = String.fromCharCode(byte);
    if (inQuery && letter === " ") return "+";
    return safe.test(letter) ? letter : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }).join("");
}

function indent(given: Value, width: Value, first: Value, blank: Value): Value {
  const value = textOf(given);
  if (typeof value !== "string") return fail("TypeError", `cannot indent a ${typeName(value)}`);
  const before = indentation(width);
  const lines = splitLines(`${value}\n`);
  const written = lines.map((line, index) =>
    index > 0 && (line !== "" || isTrue(blank)) ? paid(before) + line : line,
  );
  return paid((isTrue(first) ? before : "") + written.join("\n"));
}

function truncate(value: Value, length: Value, killWords: Value, end: Value, leeway: Value): Value {
  const mark = write(end);
  const kept = whole(length) - lengthOf(mark);
  if (kept < 0) fail("AssertionError", `expected length >= ${lengthOf(mark)}, got ${represent(length)}`);
  if (lengthOf(value) <= whole(length) + whole(leeway)) return value;
  if (typeof value !== "string" && !(value instanceof Markup))
    fail("TypeError", `cannot truncate a ${typeName(value)}`);
  const all = [...letters(write(value))];
  const start = all.slice(0, kept).join("");
  if (isTrue(killWords)) return start + mark;
  const blank = start.lastIndexOf(" ");
  return (blank < 0 ? start : start.slice(0, blank)) + mark;
}

function fileSize(value: Value, binary: Value): string {
  const size = toFloat(value, null);
  if (typeof size !== "number") return fail("ValueError", `could not convert ${typeName(value)} to float`);
  const base = isTrue(binary) ? 1024 : 1000;
  if (size === 1) return "1 Byte";
  if (size < base) return `${Math.trunc(size)} Bytes`;
  const names = [..."kMGTPEZY"].map((letter) => (base === 1024 ? `${letter.toUpperCase()}iB` : `${letter}B`));
  const place = Math.min(names.length - 1, names.findIndex((_, index) => size < base ** (index + 2)) & 15);
  return `${fixed((base * size) / base ** (place + 2), 1)} ${names[place]}`;
}

function generate(name: string, values: IterableIterator<Value>): Generator {
  return new Generator(name, values);
}

function* inBatches(value: Value, count: Value, fill: Value): IterableIterator<Value> {
  let batch: Value[] = [];
  for (const one of iterate(value)) {
    if (batch.length === whole(count)) {
      yield batch;
      batch = [];
    }
    batch.push(one);
  }
  if (batch.length === 0) return;
  const missing = fill === null ? 0 : Math.max(0, whole(count) - batch.length);
  spend(missing);
  yield [...batch, ...Array.from({ length: missing }, () => fill)];
}

function* inSlices(value: Value, slices: Value, fill: Value): IterableIterator<Value> {
  const all = listOf(value);
  const count = whole(slices);
  if (count === 0) fail("ZeroDivisionError", "integer division or modulo by zero");
  const [each, extra] = [Math.floor(all.length / count), all.length % count];
  for (let index = 0, start = 0; index < count; index++) {
    const end = start + each + (index < extra ? 1 : 0);
    spend(1 + end - start);
    yield [...all.slice(start, end), ...(fill !== null && index >= extra ? [fill] : [])];
    start = end;
  }
}

function* distinct(value: Value, sensitive: Value, path: Value): IterableIterator<Value> {
  const [key, fold, seen] = [getter(path), caseOf(sensitive), new Dict()];
  for (const one of iterate(value)) {
    const folded = fold(key(one));
    if (seen.has(folded)) continue;
    seen.set(folded, true);
    yield one;
  }
}

function groups(value: Value, path: Value, otherwise: Value, sensitive: Value): Value[] {
  const [key, fold] = [getter(path, otherwise), caseOf(sensitive)];
  const all: { key: Value; items: Value[] }[] = [];
  for (const one of sorted(listOf(value), (each) => fold(key(each)))) {
    const folded = fold(key(one));
    const last = all.at(-1);
    if (last && equals(last.key, folded)) last.items.push(one);
    else all.push({ key: folded, items: [one] });
  }
  return all.map(({ key: folded, items }) => {
    return new Tuple([isTrue(sensitive) ? folded : key(items[0]), items], ["grouper", "list"]);
  });
}

function* mapped(value: Value, args: CallArguments): IterableIterator<Value> {
  if (!isTrue(value)) return;
  let apply: (item: Value) => Value;
  if (args.positional.length === 0 && args.named.has("attribute")) {
    const extra = [...args.named.keys()].find((name) => name !== "attribute" && name !== "default");
    if (extra !== undefined) fail("FilterArgumentError", `Unexpected keyword argument '${extra}'`);
    apply = getter(args.named.get("attribute"), args.named.get("default") ?? undefined);
  } else {
    const [name, ...rest] = args.positional;
    if (name === undefined) fail("FilterArgumentError", "map requires a filter argument");
    apply = (one) => applyFilter(write(name), one, { positional: rest, named: args.named });
  }
  for (const one of iterate(value)) yield apply(one);
}

function* selected(value: Value, args: CallArguments, wanted: boolean, byAttribute: boolean): IterableIterator<Value> {
  if (!isTrue(value)) return;
  const positional = [...args.positional];
  if (byAttribute && positional.length === 0) fail("FilterArgumentError", "Missing parameter for attribute name");
  const read = byAttribute ? getter(positional.shift()) : (one: Value) => one;
  const [name, ...rest] = positional;
  const holds = (one: Value) =>
    name === undefined ? isTrue(one) : applyTest(write(name), one, { positional: rest, named: args.named });
  for (const one of iterate(value)) if (holds(read(one)) === wanted) yield one;
}

function* pairsOf(value: Value): IterableIterator<Value> {
  if (value instanceof Undefined) return;
  if (!(value instanceof Dict)) fail("TypeError", "Can only get item pairs from a mapping.");
  yield* new View(value as Dict, "items").values();
}

function sum(value: Value, path: Value, start: Value): Value {
  if (typeof start === "string") fail("TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
  let total = start;
  const key = getter(path);
  for (const one of iterate(value)) total = arithmetic("+", total, key(one));
  return total;
}

function pretty(value: Value): string {
  const ordered = (one: Value): Value => {
    if (one instanceof Dict) {
      const pairs = sorted(one.pairs(), ([key]) => (typeof key === "string" ? key : represent(key)));
      return Dict.from(pairs.map(([key, part]) => [key, ordered(part)] as const));
    }
    if (Array.isArray(one)) return one.map(ordered);
    return one instanceof Tuple ? new Tuple(one.items.map(ordered)) : one;
  };
  const written = represent(ordered(value));
  return written.length <= 80 ? written : fail("NotSupported", "pprint of a value that needs several lines");
}

function dumps(value: Value, ascii: Value, given: Value, separators: Value, sortKeys: Value): string {
  const spaces = given === null ? undefined : indentation(given);
  const parts = separators === null ? undefined : listOf(separators);
  if (parts && parts.length !== 2) fail("ValueError", "separators needs two texts");
  const own = parts ?? [spaces === undefined ? ", " : ",", ": "];
  return toJson(value, {
    ascii: isTrue(ascii),
    indent: spaces,
    separators: [write(own[0]), write(own[1])],
    sortKeys: isTrue(sortKeys),
  });
}

const titleWords = (value: Value) =>
  write(value)
    .split(/([-\s({[<]+)/)
    .map((word) => {
      const [first = "", ...rest] = letters(word);
      return first.toUpperCase() + rest.join("").toLowerCase();
    })
    .join("");

/** The filters that take a value's arguments as they are written, by name. The others have a signature. */
const openFilters: Readonly<Record<string, (value: Value, args: CallArguments) => Value>> = {
  map: (value, args) => generate("sync_do_map", mapped(value, args)),
  select: (value, args) => generate("select_or_reject", selected(value, args, true, false)),
  reject: (value, args) => generate("select_or_reject", selected(value, args, false, false)),
  selectattr: (value, args) => generate("select_or_reject", selected(value, args, true, true)),
  rejectattr: (value, args) => generate("select_or_reject", selected(value, args, false, true)),
  format: (value, { positional, named }) => {
    if (positional.length > 0 && named.size > 0) {
      fail("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
    }
    return percent(write(value), named.size > 0 ? Dict.from(named) : new Tuple(positional));
  },
};

const length: Builtin = ["/", (value) => BigInt(lengthOf(value))];
const fallback: Builtin = [
  "default_value? boolean?",
  (value, otherwise = "", boolean = false) =>
    value instanceof Undefined || (isTrue(boolean) && !isTrue(value)) ? otherwise : value,
];
const notSupported = (name: string): Builtin => ["a? b? c? d? e?", () => fail("NotSupported", `the filter ${name}`)];

const signedFilters: Readonly<Record<string, Builtin>> = {
  abs: [
    "/",
    (value) => {
      if (!isNumber(value)) return fail("TypeError", `bad operand type for abs(): '${typeName(value)}'`);
      const integer = asInteger(value);
      return integer === undefined ? Math.abs(value as number) : integer < 0n ? -integer : integer;
    },
  ],
  attr: [
    "name",
    (value, name) => {
      if (value instanceof Undefined) return value.fail();
      if (typeof name !== "string") return fail("TypeError", `attribute name must be string, not '${typeName(name)}'`);
      const found = attribute(value, name);
      return found === undefined ? undefinedMember(value, name) : found;
    },
  ],
  batch: ["linecount fill_with?", (value, count, fill = null) => generate("do_batch", inBatches(value, count, fill))],
  capitalize: ["", (value) => capitalize(write(value))],
  center: ["width?", (value, width = 80n) => centered(write(value), width)],
  count: length,
  length,
  d: fallback,
  default: fallback,
  dictsort: [
    "case_sensitive? by? reverse?",
    (value, sensitive = false, by = "key", reverse = false) => {
      if (by !== "key" && by !== "value") fail("FilterArgumentError", 'You can only sort by either "key" or "value"');
      const fold = caseOf(sensitive);
      const pairs = sorted(
        itemsOf(value, "items").pairs(),
        (pair) => fold(pair[by === "key" ? 0 : 1]),
        isTrue(reverse),
      );
      return pairs.map((pair) => new Tuple([...pair]));
    },
  ],
  e: ["/", escapeHtml],
  escape: ["/", escapeHtml],
  forceescape: ["", (value) => escapeHtml(write(value))],
  safe: ["", (value) => new Markup(write(value))],
  filesizeformat: ["binary?", (value, binary = false) => fileSize(value, binary)],
  first: [
    "",
    (value) => {
      for (const one of iterate(value)) return one;
      return new Undefined("No first item, sequence was empty.");
    },
  ],
  last: [
    "",
    (value) => {
      if (value instanceof Generator) return fail("TypeError", "'generator' object is not reversible");
      const last = listOf(value).reverse()[0];
      return last === undefined ? new Undefined("No last item, sequence was empty.") : last;
    },
  ],
  float: ["default?", (value, otherwise = 0) => toFloat(value, otherwise)],
  int: ["default? base?", (value, otherwise = 0n, base = 10n) => toInteger(value, otherwise, base)],
  groupby: [
    "attribute default? case_sensitive?",
    (value, path, otherwise = null, sensitive = false) => groups(value, path, otherwise, sensitive),
  ],
  indent: [
    "width? first? blank?",
    (value, width = 4n, first = false, blank = false) => indent(value, width, first, blank),
  ],
  items: [
    "",
    (value) => {
      return generate("do_items", pairsOf(value));
    },
  ],
  join: [
    "d? attribute?",
    (value, separator = "", path = null) => {
      const read = getter(path);
      return joinTexts(write(separator), path === null ? value : listOf(value).map(read), true);
    },
  ],
  list: ["", (value) => listOf(value)],
  lower: ["", (value) => write(value).toLowerCase()],
  upper: ["", (value) => write(value).toUpperCase()],
  max: ["case_sensitive? attribute?", (value, sensitive = false, path = null) => extreme(value, sensitive, path, 1)],
  min: ["case_sensitive? attribute?", (value, sensitive = false, path = null) => extreme(value, sensitive, path, -1)],
  pprint: ["", pretty],
  replace: [
    "old new count?",
    (value, old, fresh, count = null) =>
      replaceText(write(value), write(old), write(fresh), count === null ? -1 : whole(count)),
  ],
  reverse: [
    "",
    (value) => {
      if (typeof value === "string" || value instanceof Markup) return slice(value, null, null, -1n);
      if (value instanceof Generator) return listOf(value).reverse();
      return generate("reversed", listOf(value).reverse()[Symbol.iterator]());
    },
  ],
  round: ["precision? method?", (value, precision = 0n, how = "common") => rounded(value, precision, how)],
  slice: [
    "slices fill_with?",
    (value, slices, fill = null) => generate("sync_do_slice", inSlices(value, slices, fill)),
  ],
  sort: [
    "reverse? case_sensitive? attribute?",
    (value, reverse = false, sensitive = false, path = null) => {
      const fold = caseOf(sensitive);
      const keys = (typeof path === "string" ? path.split(",") : [path]).map((each) => getter(each));
      return sorted(listOf(value), (one) => keys.map((key) => fold(key(one))), isTrue(reverse));
    },
  ],
  string: ["", (value) => write(value)],
  sum: ["attribute? start?", (value, path = null, start = 0n) => sum(value, path, start)],
  title: ["", titleWords],
  tojson: [
    "ensure_ascii? indent? separators? sort_keys?",
    (value, ascii = false, spaces = null, separators = null, sortKeys = false) =>
      dumps(value, ascii, spaces, separators, sortKeys),
  ],
  trim: ["chars?", (value, characters = null) => stripText(write(value), characters, "both")],
  truncate: [
    "length? killwords? end? leeway?",
    (value, size = 255n, killWords = false, end = "...", leeway = 5n) =>
      truncate(value, size, killWords, end, leeway ?? 5n),
  ],
  unique: [
    "case_sensitive? attribute?",
    (value, sensitive = false, path = null) => generate("sync_do_unique", distinct(value, sensitive, path)),
  ],
  urlencode: [
    "",
    (value) => {
      if (typeof value === "string" || !isIterable(value)) return quoteUrl(value, false);
      const pairs = value instanceof Dict ? value.pairs() : listOf(value).map(pairOf);
      return pairs.map(([key, part]) => `${quoteUrl(key, true)}=${quoteUrl(part, true)}`).join("&");
    },
  ],
  wordcount: ["", (value) => BigInt(write(value).match(/[\p{L}\p{N}_]+/gu)?.length ?? 0)],
  random: notSupported("random"),
  striptags: notSupported("striptags"),
  urlize: notSupported("urlize"),
  wordwrap: notSupported("wordwrap"),
  xmlattr: notSupported("xmlattr"),
};

export const filters: Readonly<Record<string, unknown>> = { ...signedFilters, ...openFilters };

export function applyFilter(name: string, value: Value, args: CallArguments): Value {
  spend(1);
  const open = Object.hasOwn(openFilters, name) ? openFilters[name] : undefined;
  if (open) return open(value, args);
  const found = Object.hasOwn(signedFilters, name) ? signedFilters[name] : undefined;
  if (!found) return fail("TemplateRuntimeError", `No filter named '${name}' found.`);
  const result = found[1](value, ...bind(name, found[0], args));
  return value instanceof Markup && markupFilters.has(name) ? marked(result) : result;
}

/** The filters that keep escaped text escaped. */
const markupFilters = new Set([
  "upper",
  "lower",
  "capitalize",
  "trim",
  "center",
  "string",
  "indent",
  "reverse",
  "truncate",
]);

// Tests.

const ordered = (sign: string, holds: (order: number) => boolean): Builtin => [
  "/ other",
  (value, other) => holds(compare(value, other, sign)),
];
const equal: Builtin = ["/ other", equals];
const unequal: Builtin = ["/ other", (value, other) => !equals(value, other)];
const less = ordered("<", (order) => order < 0);
const greater = ordered(">", (order) => order > 0);
const atMost = ordered("<=", (order) => order <= 0);
const atLeast = ordered(">=", (order) => order >= 0);
const remainder = (value: Value, by: Value) => arithmetic("%", value, by);

const kinds: Readonly<Record<string, Builtin>> = {
  defined: ["", (value) => !(value instanceof Undefined)],
  undefined: ["", (value) => value instanceof Undefined],
  none: ["", (value) => value === null],
  boolean: ["", (value) => typeof value === "boolean"],
  true: ["", (value) => value === true],
  false: ["", (value) => value === false],
  integer: ["", (value) => typeof value === "bigint"],
  float: ["", (value) => typeof value === "number"],
  number: ["", isNumber],
  string: ["", (value) => typeof value === "string" || value instanceof Markup],
  mapping: ["", (value) => value instanceof Dict],
  sequence: ["", (value) => sequenceLike(value)],
  iterable: ["", isIterable],
  callable: [
    "/",
    (value) => value instanceof Callable || (value instanceof Special && "call" in value) || value instanceof Undefined,
  ],
  escaped: ["", (value) => value instanceof Markup],
  lower: ["", (value) => isLower(write(value))],
  upper: ["", (value) => isUpper(write(value))],
  odd: ["", (value) => equals(remainder(value, 2n), 1n)],
  even: ["", (value) => equals(remainder(value, 2n), 0n)],
  divisibleby: ["num", (value, by) => equals(remainder(value, by), 0n)],
  sameas: ["other", (value, other) => (value instanceof Undefined ? value === other : isSame(value, other))],
  in: ["seq", (value, container) => contains(container, value)],
  filter: ["", (value) => Dict.from(Object.entries(filters)).has(value)],
  test: ["", (value) => Dict.from(Object.entries(tests)).has(value)],
  "==": equal,
  eq: equal,
  equalto: equal,
  "!=": unequal,
  ne: unequal,
  "<": less,
  lt: less,
  lessthan: less,
  ">": greater,
  gt: greater,
  greaterthan: greater,
  "<=": atMost,
  le: atMost,
  ">=": atLeast,
  ge: atLeast,
};
export const tests: Readonly<Record<string, unknown>> = kinds;

const sequenceLike = (value: Value) =>
  !(value instanceof Undefined || value instanceof View || value instanceof Generator) && isIterable(value);

/** Small integers and texts of one literal are the same object in Python. */
const isSame = (value: Value, other: Value) => Object.is(value, other);

export function applyTest(name: string, value: Value, args: CallArguments): boolean {
  spend(1);
  const found = Object.hasOwn(kinds, name) ? kinds[name] : undefined;
  if (!found) return fail("TemplateRuntimeError", `No test named '${name}' found.`);
  return isTrue(found[1](value, ...bind(name, found[0], args)));
}
