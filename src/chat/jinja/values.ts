/**
 * Python's values for chat templates: how they are written, compared and counted. An integer is a bigint, a float a number,
 * and None null.
 */

// Work. A rendering has a limit, and every operation pays for the values that it reads or creates.

/** Rendering is synchronous, so one counter is enough. */
let left = Number.POSITIVE_INFINITY;

/** @param units about the time of one evaluated expression each */
export function spend(units: number): void {
  left -= units;
  if (!(left >= 0))
    throw new Error("its work is far more than the messages need; it loops, or creates long texts or lists");
}

/** @throws Error if the work takes more than `units` */
export function withWork<Result>(units: number, work: () => Result): Result {
  const before = left;
  left = units;
  try {
    return work();
  } finally {
    left = before;
  }
}

/** Reading or writing this many characters takes about as long as one expression. */
const charactersPerUnit = 16;

/** @returns the text, after its length was paid for */
export function paid(text: string): string {
  spend(text.length / charactersPerUnit);
  return text;
}

/** An error that Python would raise. */
export function fail(kind: string, message: string): never {
  throw new Error(`${kind}: ${message}`);
}

// Kinds of values that JavaScript lacks.

export type Value = unknown;

export class Tuple {
  readonly items: Value[];
  /** Of a named tuple. */
  readonly names: readonly string[];
  constructor(items: Value[], names: readonly string[] = []) {
    this.items = items;
    this.names = names;
  }
}

/** Keys keep their order, also those like "404". */
export class Dict {
  readonly entries = new Map<unknown, [key: Value, value: Value]>();

  static from(pairs: Iterable<readonly [Value, Value]>): Dict {
    const dict = new Dict();
    for (const [key, value] of pairs) dict.set(key, value);
    return dict;
  }

  get(key: Value): Value | undefined {
    return this.entries.get(hashed(key))?.[1];
  }

  has(key: Value): boolean {
    return this.entries.has(hashed(key));
  }

  set(key: Value, value: Value): void {
    spend(1);
    const hash = hashed(key);
    const known = this.entries.get(hash);
    if (known) known[1] = value;
    else this.entries.set(hash, [key, value]);
  }

  pairs(): [Value, Value][] {
    return [...this.entries.values()];
  }
}

/** The result of `keys()`, `values()` or `items()`. */
export class View {
  readonly dict: Dict;
  readonly kind: "keys" | "values" | "items";
  constructor(dict: Dict, kind: View["kind"]) {
    this.dict = dict;
    this.kind = kind;
  }

  values(): Value[] {
    const pairs = this.dict.pairs();
    if (this.kind === "items") return pairs.map((pair) => new Tuple([...pair]));
    return pairs.map((pair) => pair[this.kind === "keys" ? 0 : 1]);
  }
}

export class Range {
  readonly start: bigint;
  readonly step: bigint;
  readonly length: number;
  readonly stop: bigint;
  constructor(start: bigint, stop: bigint, step: bigint) {
    if (step === 0n) fail("ValueError", "range() arg 3 must not be zero");
    const distance = step > 0n ? stop - start : start - stop;
    const size = step > 0n ? step : -step;
    const length = distance <= 0n ? 0n : (distance + size - 1n) / size;
    if (length > 100_000n) fail("OverflowError", `the range has ${length} items; the limit is 100000`);
    this.start = start;
    this.stop = stop;
    this.step = step;
    this.length = Number(length);
  }

  at(index: number): bigint {
    return this.start + BigInt(index) * this.step;
  }
}

/** What a name that does not exist stands for. It may be printed and tested, but not used. */
export class Undefined {
  readonly message: string;
  constructor(message: string) {
    this.message = message;
  }

  fail(): never {
    return fail("UndefinedError", this.message);
  }
}

/** The values of a generator, which can be read once. */
export class Generator {
  readonly name: string;
  readonly values: Iterator<Value>;
  constructor(name: string, values: Iterator<Value>) {
    this.name = name;
    this.values = values;
  }
}

export interface CallArguments {
  positional: Value[];
  named: Map<string, Value>;
}

/** A function, a macro, or a method of a value. */
export class Callable {
  readonly name: string;
  readonly call: (args: CallArguments) => Value;
  /** What templates can read of it. */
  readonly attributes: ReadonlyMap<string, Value>;
  constructor(name: string, call: Callable["call"], attributes: ReadonlyMap<string, Value> = new Map()) {
    this.name = name;
    this.call = call;
    this.attributes = attributes;
  }
}

/** The result of `namespace()`, the only value that a template can change. */
export class Namespace {
  readonly attributes: Map<string, Value>;
  constructor(attributes: Map<string, Value>) {
    this.attributes = attributes;
  }
}

/** The variable `loop`, and objects like it. */
export abstract class Special {
  /** @returns undefined if there is no such attribute */
  abstract attribute(name: string): Value | undefined;
  abstract written(): string;
}

/** Escaped text, the result of `escape` and `safe`. What is added to it is escaped. */
export class Markup {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

// Values from JavaScript and JSON.

/** A number of JSON as it was written: `100.0` and `1e-07` are floats, and integers may be of any size. */
class JsonNumber {
  readonly raw: string;
  constructor(raw: string) {
    this.raw = raw;
  }
}

const safeInteger = /^-?\d+$/;

/** A value of plain data: `Map` and objects are dicts, `undefined` is left out. */
export function toValue(given: unknown): Value {
  spend(1);
  switch (typeof given) {
    case "number":
      return Number.isInteger(given) && Math.abs(given) < 1e21 ? BigInt(given) : given;
    case "string":
    case "boolean":
    case "bigint":
      return given;
    case "undefined":
      return null;
    case "function":
    case "symbol":
      return fail("TypeError", `a ${typeof given} is not data`);
    default:
  }
  if (given === null || isOwn(given)) return given;
  if (given instanceof JsonNumber) return safeInteger.test(given.raw) ? BigInt(given.raw) : Number(given.raw);
  if (Array.isArray(given)) return given.map(toValue);
  const pairs = given instanceof Map ? [...given] : Object.entries(given as object);
  return Dict.from(pairs.filter(([, value]) => value !== undefined).map(([key, value]) => [key, toValue(value)]));
}

const own = [Dict, Tuple, Undefined, Callable, Namespace, Special, Range, View, Generator, Markup] as const;
const isOwn = (value: unknown): boolean => own.some((kind) => value instanceof kind);

// Kinds.

export const isNumber = (value: Value): value is bigint | number | boolean =>
  typeof value === "bigint" || typeof value === "number" || typeof value === "boolean";

/** A Boolean is an integer in Python. */
export const asInteger = (value: Value): bigint | undefined =>
  typeof value === "bigint" ? value : typeof value === "boolean" ? BigInt(value) : undefined;

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (typeof value === "string") return "str";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint") return "int";
  if (typeof value === "number") return "float";
  if (Array.isArray(value)) return "list";
  if (value instanceof View) return `dict_${value.kind}`;
  if (value instanceof Callable) return "function";
  return (value as object).constructor.name.toLowerCase().replace("undefined", "Undefined");
}

export function isTrue(value: Value): boolean {
  if (value instanceof Undefined) return false;
  const size = sizeOf(value);
  return size === undefined ? value !== null && value !== false && value !== 0 && value !== 0n : size > 0;
}

/** Python's `len`; undefined if the value has none. Of a text zero or more: only whether it is empty is exact. */
function sizeOf(value: Value): number | undefined {
  if (typeof value === "string" || Array.isArray(value)) return value.length;
  if (value instanceof Markup) return value.text.length;
  if (value instanceof Tuple) return value.items.length;
  if (value instanceof Dict) return value.entries.size;
  if (value instanceof View) return value.dict.entries.size;
  if (value instanceof Range) return value.length;
  return value instanceof Undefined ? 0 : undefined;
}

export function lengthOf(value: Value): number {
  if (typeof value === "string") return letters(value).length;
  if (value instanceof Markup) return letters(value.text).length;
  return sizeOf(value) ?? fail("TypeError", `object of type '${typeName(value)}' has no len()`);
}

/** The characters of a text, which are code points in Python. */
export function letters(text: string): string | string[] {
  if (!/[\ud800-\udfff]/.test(paid(text))) return text;
  spend(text.length);
  return [...text];
}

/** The list, tuple or range as an array of its items; undefined for other values. */
export function sequence(value: Value): Value[] | undefined {
  if (Array.isArray(value)) return value;
  if (value instanceof Tuple) return value.items;
  return undefined;
}

/** @throws TypeError of Python if the value cannot be iterated */
export function* iterate(value: Value): Generator_ {
  if (value instanceof Generator) {
    for (let next = value.values.next(); !next.done; next = value.values.next()) {
      spend(1);
      yield next.value;
    }
    return;
  }
  for (const item of iterable(value)) {
    spend(1);
    yield item;
  }
}

type Generator_ = IterableIterator<Value>;

export function isIterable(value: Value): boolean {
  return value instanceof Generator || sizeOf(value) !== undefined;
}

function iterable(value: Value): Iterable<Value> {
  if (typeof value === "string") return letters(value);
  if (value instanceof Markup) return letters(value.text);
  if (value instanceof Dict) return value.pairs().map(([key]) => key);
  if (value instanceof View) return value.values();
  if (value instanceof Undefined) return [];
  if (value instanceof Range) return Array.from({ length: value.length }, (_, index) => value.at(index));
  return sequence(value) ?? fail("TypeError", `'${typeName(value)}' object is not iterable`);
}

/** Python's `list`. */
export const listOf = (value: Value): Value[] => [...iterate(value)];

// Text.

/** White space of Python's `str.isspace`. */
const spaces = new Set(
  "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
);
export const isPythonSpace = (letter: string): boolean => spaces.has(letter);

/** @param characters default: white space */
export function stripPython(text: string, side: "start" | "end" | "both", characters?: string): string {
  const gone = characters === undefined ? spaces : new Set(paid(characters));
  // A pair of surrogates is one character.
  const wide = characters !== undefined && /[\ud800-\udfff]/.test(characters);
  const parts: ArrayLike<string> = wide ? [...text] : text;
  let start = 0;
  let end = parts.length;
  if (side !== "end") while (start < end && gone.has(parts[start] ?? "")) start++;
  if (side !== "start") while (end > start && gone.has(parts[end - 1] ?? "")) end--;
  return typeof parts === "string" ? parts.slice(start, end) : (parts as string[]).slice(start, end).join("");
}

/** Python's `str`. */
export function write(value: Value): string {
  if (typeof value === "string") return paid(value);
  if (value instanceof Undefined) return "";
  if (value instanceof Markup) return paid(value.text);
  return represent(value);
}

/** Python's `repr`. */
export function represent(value: Value): string {
  spend(1);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quoted(value);
  if (typeof value === "bigint") return writeInteger(value);
  if (typeof value === "number") return writeFloat(value);
  if (Array.isArray(value)) return `[${joined(value.map(represent))}]`;
  if (value instanceof Tuple) {
    return `(${joined(value.items.map(represent))}${value.items.length === 1 ? "," : ""})`;
  }
  if (value instanceof Dict) {
    return `{${joined(value.pairs().map(([key, item]) => `${represent(key)}: ${represent(item)}`))}}`;
  }
  if (value instanceof View) return `dict_${value.kind}(${represent(value.values())})`;
  if (value instanceof Range) {
    return `range(${value.start}, ${value.stop}${value.step === 1n ? "" : `, ${value.step}`})`;
  }
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof Special) return value.written();
  if (value instanceof Namespace) return `<Namespace ${represent(Dict.from(value.attributes))}>`;
  // Python writes an address, which differs from run to run.
  const address = "at 0x7f0000000000";
  if (value instanceof Callable) return value.name.startsWith("<") ? value.name : `<function ${value.name} ${address}>`;
  if (value instanceof Generator) return `<generator object ${value.name} ${address}>`;
  return value instanceof Markup ? `Markup(${quoted(value.text)})` : fail("TypeError", "an unknown value");
}

const joined = (parts: readonly string[]) => paid(parts.join(", "));

/** With the quotation mark that needs no escape, if there is one. */
function quoted(text: string): string {
  const mark = paid(text).includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(/[\\'"]|[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (letter) => {
    if (letter === "\\" || letter === mark) return `\\${letter}`;
    if (letter === "'" || letter === '"') return letter;
    if (letter === "\n" || letter === "\r" || letter === "\t") return { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[letter];
    const hex = (letter.codePointAt(0) ?? 0).toString(16);
    if (hex.length <= 2) return `\\x${hex.padStart(2, "0")}`;
    return hex.length <= 4 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });
  return paid(mark + escaped + mark);
}

/** Python refuses to write longer integers. */
const mostDigits = 4300;

function writeInteger(value: bigint): string {
  if (value < 2n ** 53n && value > -(2n ** 53n)) return String(value);
  checkSize(value);
  const text = String(value);
  if (text.length > mostDigits) fail("ValueError", `an integer has over ${mostDigits} digits`);
  return text;
}

/** Bounds what arithmetic on integers costs. @returns the same integer */
export function checkSize(value: bigint): bigint {
  const bits = value.toString(16).length * 4;
  spend(bits / 256);
  if (bits > 20_000) fail("OverflowError", "an integer has over 20000 bits");
  return value;
}

export function writeFloat(value: number, infinity = "inf", notNumber = "nan"): string {
  if (Number.isNaN(value)) return notNumber;
  if (!Number.isFinite(value)) return value < 0 ? `-${infinity}` : infinity;
  if (Object.is(value, -0)) return "-0.0";
  if (value === 0) return "0.0";
  const [mantissa = "", exponent = "0"] = value.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    return `${mantissa}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  const sign = mantissa.startsWith("-") ? "-" : "";
  const figures = mantissa.replace(/[-.]/g, "");
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${figures}`;
  const whole = figures.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${figures.slice(power + 1) || "0"}`;
}

// Equality and order.

/** The key of a dict: equal values have equal keys. */
function hashed(key: Value): unknown {
  if (typeof key === "string") return paid(key);
  if (key instanceof Markup) return paid(key.text);
  if (typeof key === "boolean") return BigInt(key);
  if (typeof key === "number") return Number.isInteger(key) ? BigInt(key) : key;
  // A text cannot begin like this, except with half of a pair.
  if (key instanceof Tuple) return `\ud800${represent(new Tuple(key.items.map(plainKey)))}`;
  if (Array.isArray(key) || key instanceof Dict) fail("TypeError", `unhashable type: '${typeName(key)}'`);
  return key instanceof Undefined ? Undefined : key;
}

const plainKey = (value: Value): Value =>
  typeof value === "boolean" || typeof value === "number" ? hashed(value) : value;

export function equals(left: Value, right: Value): boolean {
  spend(1);
  if (isNumber(left) && isNumber(right)) return number(left) <= number(right) && number(left) >= number(right);
  if (typeof left === "string" && typeof right === "string") {
    if (left.length !== right.length) return false;
    paid(left);
    return left === right;
  }
  if (Array.isArray(left) && Array.isArray(right)) return sameItems(left, right);
  if (left instanceof Tuple && right instanceof Tuple) return sameItems(left.items, right.items);
  if (left instanceof Range && right instanceof Range) {
    if (left.length !== right.length) return false;
    return left.length === 0 || (left.start === right.start && (left.length === 1 || left.step === right.step));
  }
  if (left instanceof Dict && right instanceof Dict) {
    const same = ([key, value]: [Value, Value]) => right.has(key) && equals(value, right.get(key));
    return left.entries.size === right.entries.size && left.pairs().every(same);
  }
  if (left instanceof View && right instanceof View && left.kind === "keys" && right.kind === "keys") {
    return left.dict.entries.size === right.dict.entries.size && left.values().every((key) => right.dict.has(key));
  }
  if (left instanceof Markup)
    return typeof right !== "string" && !(right instanceof Markup) ? false : equals(left.text, write(right));
  if (right instanceof Markup) return typeof left === "string" && equals(left, right.text);
  return (left instanceof Undefined && right instanceof Undefined) || left === right;
}

const number = (value: bigint | number | boolean) => (typeof value === "boolean" ? BigInt(value) : value);

const sameItems = (left: readonly Value[], right: readonly Value[]) =>
  left.length === right.length && left.every((value, index) => value === right[index] || equals(value, right[index]));

/** Negative, zero or positive. Not a number if one of them is not. @throws TypeError of Python for values without an order */
export function compare(left: Value, right: Value, sign = "<"): number {
  spend(1);
  if (isNumber(left) && isNumber(right)) {
    const [first, second] = [number(left), number(right)];
    return first < second ? -1 : first > second ? 1 : Number.isNaN(first) || Number.isNaN(second) ? Number.NaN : 0;
  }
  if (typeof left === "string" && typeof right === "string") return compareTexts(left, right);
  if (left instanceof Markup) return compare(left.text, right, sign);
  if (right instanceof Markup) return compare(left, right.text, sign);
  const [first, second] = [sequence(left), sequence(right)];
  if (first && second && Array.isArray(left) === Array.isArray(right)) {
    for (const [index, value] of first.entries()) {
      if (index >= second.length) return 1;
      if (!equals(value, second[index])) return compare(value, second[index], sign);
    }
    return first.length - second.length;
  }
  for (const side of [left, right]) if (side instanceof Undefined) side.fail();
  return fail("TypeError", `'${sign}' not supported between instances of '${typeName(left)}' and '${typeName(right)}'`);
}

/** By code point, while JavaScript compares halves of pairs. */
function compareTexts(left: string, right: string): number {
  const shared = Math.min(left.length, right.length);
  spend(shared / charactersPerUnit);
  for (let index = 0; index < shared; index++) {
    const [one, other] = [left.charCodeAt(index), right.charCodeAt(index)];
    if (one !== other) return rank(one) - rank(other);
  }
  return left.length - right.length;
}

const rank = (unit: number) => (unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x2000 : unit - 0x800);

/** Python's `in`. */
export function contains(container: Value, item: Value): boolean {
  if (container instanceof Markup) return contains(container.text, item);
  if (item instanceof Markup && typeof container === "string") return contains(container, item.text);
  if (typeof container === "string") {
    if (item instanceof Undefined || typeof item !== "string") {
      return fail("TypeError", `'in <string>' requires string as left operand, not ${typeName(item)}`);
    }
    return findIn(container, item, 0) >= 0;
  }
  if (container instanceof Dict) return container.has(item);
  if (container instanceof View && container.kind === "keys") return container.dict.has(item);
  for (const value of iterate(container)) if (value === item || equals(value, item)) return true;
  return false;
}

/** Where a text contains another, in UTF-16 units; -1 if it does not. Takes linear time, which V8's search may not. */
export function findIn(text: string, part: string, from: number): number {
  const long = part.length > 32 && text.length - from > 4096;
  const at = long ? findLong(text, part, from) : text.indexOf(part, from);
  spend(1 + ((at < 0 ? text.length : at) - from + part.length) / (long ? 4 : charactersPerUnit));
  return at;
}

/** Knuth, Morris and Pratt. */
function findLong(text: string, part: string, from: number): number {
  const borders = new Int32Array(part.length);
  for (let at = 1, border = 0; at < part.length; at++) {
    while (border > 0 && part.charCodeAt(at) !== part.charCodeAt(border)) border = borders[border - 1] ?? 0;
    if (part.charCodeAt(at) === part.charCodeAt(border)) border++;
    borders[at] = border;
  }
  for (let at = from, same = 0; at < text.length; at++) {
    while (same > 0 && text.charCodeAt(at) !== part.charCodeAt(same)) same = borders[same - 1] ?? 0;
    if (text.charCodeAt(at) === part.charCodeAt(same)) same++;
    if (same === part.length) return at - same + 1;
  }
  return -1;
}

/** Python's `sorted`, which is stable. */
export function sorted<Item>(items: readonly Item[], keyOf: (item: Item) => Value, reverse = false): Item[] {
  const keyed = items.map((item) => ({ item, key: keyOf(item) }));
  if (reverse) keyed.reverse();
  keyed.sort((left, right) => compare(left.key, right.key) || 0);
  if (reverse) keyed.reverse();
  return keyed.map(({ item }) => item);
}
