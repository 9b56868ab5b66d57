/** What templates can call: jinja2's filters, tests and functions, and the methods of Python's values. */

import {
  capitalize,
  centered,
  fixed,
  formatText,
  indentation,
  isLower,
  isUpper,
  joinTexts,
  percent,
  replaceText,
  reversedItems,
  splitLines,
  stripText,
  textMethods,
  toJson,
  whole,
} from "./jinja-texts.ts";
import {
  asInteger,
  type CallArguments,
  Callable,
  checkSize,
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
  Namespace,
  paid,
  Range,
  represent,
  sequence,
  sorted,
  Special,
  spend,
  Tuple,
  typeName,
  Undefined,
  type Value,
  View,
  write,
  writeFloat,
} from "./jinja-values.ts";

// Calls.

/** Parameters of a signature such as `"width? fillchar?"`. A `/` in front refuses named arguments. */
const signatures = new Map<string, { names: string[]; needed: number; positionalOnly: boolean }>();

function signatureOf(written: string) {
  const known = signatures.get(written);
  if (known) return known;
  const words = written.split(" ").filter((word) => word !== "" && word !== "/");
  const needed = words.filter((word) => !word.endsWith("?")).length;
  const read = { names: words.map((word) => word.replace("?", "")), needed, positionalOnly: written.startsWith("/") };
  signatures.set(written, read);
  return read;
}

/** @returns the arguments in the signature's order; absent ones are undefined */
function bind(name: string, signature: string, { positional, named }: CallArguments): Value[] {
  const { names, needed, positionalOnly } = signatureOf(signature);
  if (positional.length > names.length) {
    fail("TypeError", `${name}() takes at most ${names.length} arguments (${positional.length} given)`);
  }
  const values = names.map((_, index): Value => positional[index]);
  for (const [key, value] of named) {
    const index = names.indexOf(key);
    if (index < 0 || positionalOnly) fail("TypeError", `${name}() got an unexpected keyword argument '${key}'`);
    if (index < positional.length) fail("TypeError", `${name}() got multiple values for argument '${key}'`);
    values[index] = value;
  }
  const missing = names.findIndex((_, index) => index < needed && values[index] === undefined);
  if (missing >= 0) fail("TypeError", `${name}() missing the argument '${names[missing]}'`);
  return values;
}

type Implementation = (value: Value, ...args: Value[]) => Value;
type Builtin = readonly [signature: string, implementation: Implementation];

const method = (name: string, signature: string, self: Value, implementation: Implementation) =>
  new Callable(`<built-in method ${name} of ${typeName(self)} object at 0x7f0000000000>`, (args) =>
    implementation(self, ...bind(name, signature, args)),
  );

const plain = (...positional: Value[]): CallArguments => ({ positional, named: new Map() });

// Attributes and items.

const undefinedMember = (object: Value, key: Value) =>
  new Undefined(
    typeof key === "string"
      ? `'${typeName(object)} object' has no attribute ${represent(key)}`
      : `${typeName(object)} object has no element ${represent(key)}`,
  );

/** The methods that change a value are not allowed in chat templates. */
const dictMethods: Readonly<Record<string, Builtin>> = {
  keys: ["/", (self) => new View(self as Dict, "keys")],
  values: ["/", (self) => new View(self as Dict, "values")],
  items: ["/", (self) => new View(self as Dict, "items")],
  copy: ["/", (self) => Dict.from((self as Dict).pairs())],
  get: ["/ key default?", (self, key, otherwise = null) => ((self as Dict).has(key) ? (self as Dict).get(key) : otherwise)],
};
const dictChanges = new Set(["clear", "pop", "popitem", "setdefault", "update"]);

const listMethods: Readonly<Record<string, Builtin>> = {
  index: [
    "/ value start? stop?",
    (self, wanted, start = 0n, stop = null) => {
      const items = sequence(self) ?? [];
      const end = stop === null ? items.length : whole(stop);
      for (const [index, item] of items.entries()) {
        if (index >= whole(start) && index < end && equals(item, wanted)) return BigInt(index);
      }
      return fail("ValueError", `${represent(wanted)} is not in ${typeName(self)}`);
    },
  ],
  count: ["/ value", (self, wanted) => BigInt(listOf(self).filter((item) => equals(item, wanted)).length)],
};

const numberMethods: Readonly<Record<string, Builtin>> = {
  bit_length: ["/", (self) => BigInt((asInteger(self) ?? 0n).toString(2).replace("-", "").replace(/^0$/, "").length)],
  is_integer: ["/", (self) => Number.isInteger(Number(self))],
};

function attribute(object: Value, name: string): Value | undefined {
  if (name.startsWith("__")) return undefined;
  const from = (methods: Readonly<Record<string, Builtin>>) => {
    const found = Object.hasOwn(methods, name) ? methods[name] : undefined;
    return found && method(name, found[0], object, found[1]);
  };
  if (typeof object === "string") {
    if (name === "format") {
      return new Callable("format", ({ positional, named }) => formatText(object, positional, named, member));
    }
    if (name === "format_map") {
      return method(name, "/ mapping", object, (_, mapping) => {
        if (!(mapping instanceof Dict)) return fail("TypeError", "format_map() needs a mapping");
        return formatText(object, [], new Map(mapping.pairs() as [string, Value][]), member);
      });
    }
    return from(textMethods as Readonly<Record<string, Builtin>>);
  }
  if (object instanceof Markup) return markupMethod(object, name);
  if (object instanceof Dict) {
    if (dictChanges.has(name)) return unsafe(object, name);
    return name === "fromkeys" ? fromKeys : from(dictMethods);
  }
  if (Array.isArray(object)) {
    if (name === "copy") return method(name, "/", object, (self) => [...(self as Value[])]);
    if (["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"].includes(name)) {
      return unsafe(object, name);
    }
    return from(listMethods);
  }
  if (object instanceof Tuple) {
    const index = object.names.indexOf(name);
    return index >= 0 ? object.items[index] : from(listMethods);
  }
  if (object instanceof Range) {
    if (name === "start" || name === "stop" || name === "step") return object[name];
    return from(listMethods);
  }
  if (isNumber(object)) {
    if (name === "real") return object;
    if (name === "imag") return typeof object === "number" ? 0 : 0n;
    if (typeof object !== "number") {
      if (name === "numerator") return asInteger(object);
      if (name === "denominator") return 1n;
      return name === "bit_length" ? from(numberMethods) : undefined;
    }
    return name === "is_integer" ? from(numberMethods) : undefined;
  }
  if (object instanceof Namespace) return object.attributes.get(name);
  if (object instanceof Special) return object.attribute(name);
  return object instanceof Callable ? object.attributes.get(name) : undefined;
}

/** The methods of escaped text escape their arguments, and return escaped text. */
function markupMethod(object: Markup, name: string): Value | undefined {
  const found = attribute(object.text, name);
  if (!(found instanceof Callable)) return found;
  const escapesArguments = ["replace", "join", "format", "center", "ljust", "rjust"].includes(name);
  return new Callable(found.name, ({ positional, named }) => {
    const escaped = (value: Value): Value => {
      if (name === "join") return listOf(value).map((one) => escapeHtml(one).text);
      return typeof value === "string" || (value instanceof Markup && escapesArguments) ? escapeHtml(value).text : value;
    };
    const given = (value: Value, index: number): Value => {
      if (escapesArguments && !(name === "replace" && index === 0)) return escaped(value);
      return value instanceof Markup ? value.text : value;
    };
    const values = positional.map(given);
    return marked(found.call({ positional: values, named: new Map([...named].map(([key, one]) => [key, escaped(one)])) }));
  });
}

function marked(value: Value): Value {
  if (typeof value === "string") return new Markup(value);
  if (Array.isArray(value)) return value.map(marked);
  return value instanceof Tuple ? new Tuple(value.items.map(marked)) : value;
}

const unsafe = (object: Value, name: string) =>
  new Undefined(`access to attribute '${name}' of '${typeName(object)}' object is unsafe.`);

const fromKeys = new Callable("fromkeys", (args) => {
  const [keys, value = null] = bind("fromkeys", "/ iterable value?", args);
  return Dict.from(listOf(keys).map((key) => [key, value] as const));
});

function item(object: Value, key: Value): Value | undefined {
  if (object instanceof Dict) return object.has(key) ? object.get(key) : undefined;
  const index = asInteger(key);
  if (index === undefined) return undefined;
  const text = object instanceof Markup ? object.text : object;
  const items = typeof text === "string" ? letters(text) : object instanceof Range ? object : sequence(object);
  if (items === undefined) return undefined;
  const at = Number(index < 0n ? index + BigInt(items.length) : index);
  if (at < 0 || at >= items.length) return undefined;
  return items instanceof Range ? items.at(at) : items[at];
}

/** `object.name` or `object[key]`, which fall back to each other. */
export function member(object: Value, key: Value, kind: "attribute" | "item"): Value {
  if (object instanceof Undefined) return object.fail();
  if (kind === "attribute" && typeof key === "string") {
    const own = attribute(object, key);
    const found = own === undefined && object instanceof Dict ? item(object, key) : own;
    return found === undefined ? undefinedMember(object, key) : found;
  }
  const found = item(object, key);
  if (found !== undefined) return object instanceof Markup ? marked(found) : found;
  const own = typeof key === "string" ? attribute(object, key) : undefined;
  return own === undefined ? undefinedMember(object, key) : own;
}

/** `value[start:stop:step]` */
export function slice(value: Value, start: Value, stop: Value, step: Value): Value {
  if (value instanceof Undefined) return value.fail();
  if (value instanceof Markup) return marked(slice(value.text, start, stop, step));
  const items = typeof value === "string" ? letters(value) : value instanceof Range ? value : sequence(value);
  if (items === undefined) return undefinedMember(value, null);
  const parts = [start, stop, step].map((part) => {
    if (part === null || asInteger(part) !== undefined) return part === null ? undefined : whole(part);
    return Number.NaN;
  });
  // jinja2 returns an undefined value if Python refuses the slice as a TypeError.
  if (parts.some(Number.isNaN)) return undefinedMember(value, null);
  const by = parts[2] ?? 1;
  if (by === 0) fail("ValueError", "slice step cannot be zero");
  const { length } = items;
  const place = (index: number | undefined, otherwise: number) => {
    if (index === undefined) return otherwise;
    const from = index < 0 ? index + length : index;
    return by > 0 ? Math.min(Math.max(from, 0), length) : Math.min(Math.max(from, -1), length - 1);
  };
  const first = place(parts[0], by > 0 ? 0 : length - 1);
  const last = place(parts[1], by > 0 ? length : -1);
  if (items instanceof Range) {
    const size = items.step * BigInt(by);
    return new Range(items.at(first), items.at(last), size);
  }
  if (by === 1 && typeof items === "string") return paid(items.slice(first, Math.max(first, last)));
  const picked: Value[] = [];
  for (let at = first; by > 0 ? at < last : at > last; at += by) {
    spend(1);
    picked.push(items[at]);
  }
  if (typeof value === "string") return picked.join("");
  return value instanceof Tuple ? new Tuple(picked) : picked;
}

// Arithmetic.

export function arithmetic(operator: string, left: Value, right: Value): Value {
  for (const side of [left, right]) if (side instanceof Undefined) side.fail();
  if (left instanceof Markup || right instanceof Markup) return markupArithmetic(operator, left, right);
  if (isNumber(left) && isNumber(right)) return calculate(operator, left, right);
  if (operator === "+") {
    if (typeof left === "string" && typeof right === "string") return paid(left + right);
    if (Array.isArray(left) && Array.isArray(right)) return bought([...left, ...right]);
    if (left instanceof Tuple && right instanceof Tuple) return new Tuple(bought([...left.items, ...right.items]));
  }
  if (operator === "%" && typeof left === "string") return percent(left, right);
  if (operator === "*") {
    const [text, times] = asInteger(left) === undefined ? [left, asInteger(right)] : [right, asInteger(left)];
    const items = typeof text === "string" ? text : sequence(text);
    if (times !== undefined && items !== undefined) {
      const count = times < 0n ? 0 : Number(times);
      spend(typeof items === "string" ? (items.length * count) / 16 : items.length * count);
      if (typeof items === "string") return items.repeat(items === "" ? 0 : count);
      const repeated = items.length === 0 ? [] : Array.from({ length: count }, () => items).flat();
      return text instanceof Tuple ? new Tuple(repeated) : repeated;
    }
  }
  return fail("TypeError", `unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
}

function markupArithmetic(operator: string, left: Value, right: Value): Value {
  const isText = (value: Value) => typeof value === "string" || value instanceof Markup;
  if (operator === "+" && isText(left) && isText(right)) {
    return new Markup(paid(escapeHtml(left).text + escapeHtml(right).text));
  }
  if (operator === "*") return marked(arithmetic("*", textOf(left), textOf(right)));
  if (operator === "%" && left instanceof Markup) {
    const escaped = (value: Value): Value => (isNumber(value) ? value : escapeHtml(value).text);
    const values = right instanceof Tuple ? new Tuple(right.items.map(escaped)) : escaped(right);
    return new Markup(percent(left.text, right instanceof Dict ? right : values));
  }
  if (operator === "%" && typeof left === "string") return percent(left, textOf(right));
  return fail("TypeError", `unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
}

const textOf = (value: Value): Value => (value instanceof Markup ? value.text : value);

function bought<Item>(items: Item[]): Item[] {
  spend(items.length);
  return items;
}

function calculate(operator: string, first: bigint | number | boolean, second: bigint | number | boolean): Value {
  const [left, right] = [asInteger(first), asInteger(second)];
  if (left !== undefined && right !== undefined && operator !== "/") return ofIntegers(operator, left, right);
  const [a, b] = [Number(first), Number(second)];
  switch (operator) {
    case "+":
      return a + b;
    case "-":
      return a - b;
    case "*":
      return a * b;
    case "**":
      if (a === 0 && b < 0) return fail("ZeroDivisionError", "0.0 cannot be raised to a negative power");
      return a < 0 && !Number.isInteger(b) ? fail("TypeError", "complex numbers are not supported") : a ** b;
    default:
  }
  if (b === 0) return fail("ZeroDivisionError", operator === "/" ? "division by zero" : `float ${operator} by zero`);
  if (operator === "/") return a / b;
  let rest = a % b;
  if (rest !== 0 && rest < 0 !== b < 0) rest += b;
  if (operator === "%") return rest === 0 ? (b < 0 ? -0 : 0) : rest;
  const quotient = Math.round((a - rest) / b);
  return Number.isFinite(a) ? quotient : Number.NaN;
}

function ofIntegers(operator: string, left: bigint, right: bigint): Value {
  switch (operator) {
    case "+":
      return checkSize(left + right);
    case "-":
      return checkSize(left - right);
    case "*":
      return checkSize(left * right);
    case "**": {
      if (right < 0n) return calculate("**", Number(left), Number(right));
      const bits = (left < 0n ? -left : left) <= 1n ? 1 : left.toString(2).length;
      if (bits > 1 && Number(right) * bits > 40_000) return fail("OverflowError", "an integer has over 20000 bits");
      if (bits === 1) return left === -1n && right % 2n === 0n ? 1n : right === 0n ? 1n : left;
      return checkSize(left ** right);
    }
    default:
  }
  if (right === 0n) return fail("ZeroDivisionError", "integer division or modulo by zero");
  const rest = left % right;
  const turned = rest !== 0n && rest < 0n !== right < 0n;
  if (operator === "%") return turned ? rest + right : rest;
  return left / right - (turned ? 1n : 0n);
}

export function signed(operator: "-" | "+", value: Value): Value {
  if (value instanceof Undefined) return value.fail();
  const integer = asInteger(value);
  if (integer !== undefined) return operator === "-" ? -integer : integer;
  if (typeof value === "number") return operator === "-" ? -value : value;
  return fail("TypeError", `bad operand type for unary ${operator}: '${typeName(value)}'`);
}

// Filters.

/** `a.0.b` as a function that reads it. */
function getter(path: Value, otherwise?: Value): (value: Value) => Value {
  if (path === null || path === undefined) return (value) => value;
  const keys = typeof path === "string" ? path.split(".").map((key) => (/^\d+$/.test(key) ? BigInt(key) : key)) : [path];
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
  if (how !== "common" && how !== "ceil" && how !== "floor") fail("FilterArgumentError", "method must be common, ceil or floor");
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

const htmlEscapes: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;" };
const escapeHtml = (value: Value) =>
  value instanceof Markup ? value : new Markup(paid(write(value).replace(/[&<>'"]/g, (mark) => htmlEscapes[mark] ?? mark)));

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
  const written = lines.map((line, index) => (index > 0 && (line !== "" || isTrue(blank)) ? paid(before) + line : line));
  return paid((isTrue(first) ? before : "") + written.join("\n"));
}

function truncate(value: Value, length: Value, killWords: Value, end: Value, leeway: Value): Value {
  if (typeof value !== "string" && !(value instanceof Markup)) fail("TypeError", `cannot truncate a ${typeName(value)}`);
  const all = [...letters(write(value))];
  const mark = write(end);
  const kept = whole(length) - lengthOf(mark);
  if (kept < 0) fail("AssertionError", `expected length >= ${lengthOf(mark)}, got ${represent(length)}`);
  if (all.length <= whole(length) + whole(leeway)) return value;
  const start = all.slice(0, kept).join("");
  if (isTrue(killWords)) return start + mark;
  const blank = start.lastIndexOf(" ");
  return (blank < 0 ? start : start.slice(0, blank)) + mark;
}

function fileSize(value: Value, binary: Value): string {
  const size = Number(toFloat(value, null));
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
      const found = attribute(value, write(name));
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
      const pairs = sorted(itemsOf(value, "items").pairs(), (pair) => fold(pair[by === "key" ? 0 : 1]), isTrue(reverse));
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
      const last = reversedItems(value)[0];
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
      if (value instanceof Undefined) return generate("do_items", [][Symbol.iterator]());
      if (!(value instanceof Dict)) return fail("TypeError", "Can only get item pairs from a mapping.");
      return generate("do_items", new View(value, "items").values()[Symbol.iterator]());
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
      return generate("reversed", reversedItems(value)[Symbol.iterator]());
    },
  ],
  round: ["precision? method?", (value, precision = 0n, how = "common") => rounded(value, precision, how)],
  slice: ["slices fill_with?", (value, slices, fill = null) => generate("sync_do_slice", inSlices(value, slices, fill))],
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
  unique: ["case_sensitive? attribute?", (value, sensitive = false, path = null) => generate("sync_do_unique", distinct(value, sensitive, path))],
  urlencode: [
    "",
    (value) => {
      if (typeof value === "string" || !isIterable(value)) return quoteUrl(value, false);
      const pairs = value instanceof Dict ? value.pairs() : listOf(value).map(listOf);
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
const markupFilters = new Set(["upper", "lower", "capitalize", "trim", "center", "string", "indent", "reverse", "truncate"]);

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
  callable: ["/", (value) => value instanceof Callable || (value instanceof Special && "call" in value) || value instanceof Undefined],
  escaped: ["", (value) => value instanceof Markup],
  lower: ["", (value) => isLower(write(value))],
  upper: ["", (value) => isUpper(write(value))],
  odd: ["", (value) => equals(remainder(value, 2n), 1n)],
  even: ["", (value) => equals(remainder(value, 2n), 0n)],
  divisibleby: ["num", (value, by) => equals(remainder(value, by), 0n)],
  sameas: ["other", (value, other) => (value instanceof Undefined ? value === other : isSame(value, other))],
  in: ["seq", (value, container) => contains(container, value)],
  filter: ["", (value) => typeof value === "string" && Object.hasOwn(filters, value)],
  test: ["", (value) => typeof value === "string" && Object.hasOwn(tests, value)],
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

// Functions.

class Cycler extends Special {
  private at = 0;
  private readonly items: readonly Value[];
  constructor(items: readonly Value[]) {
    super();
    this.items = items;
  }

  attribute(name: string): Value | undefined {
    if (name === "current") return this.items[this.at];
    if (name === "reset") return new Callable(name, () => ((this.at = 0), null));
    if (name !== "next") return undefined;
    return new Callable(name, () => {
      const value = this.items[this.at];
      this.at = (this.at + 1) % this.items.length;
      return value;
    });
  }

  written(): string {
    return "<jinja2.utils.Cycler object at 0x7f0000000000>";
  }
}

const callable = (name: string, signature: string, implementation: (...args: Value[]) => Value) =>
  new Callable(name, (args) => implementation(...bind(name, signature, args)));

function dictOf({ positional, named }: CallArguments): Dict {
  if (positional.length > 1) fail("TypeError", `dict expected at most 1 argument, got ${positional.length}`);
  const [given] = positional;
  const pairs = given === undefined ? [] : given instanceof Dict ? given.pairs() : listOf(given).map(pairOf);
  return Dict.from([...pairs, ...named]);
}

function pairOf(value: Value): [Value, Value] {
  const pair = listOf(value);
  if (pair.length !== 2) fail("ValueError", `a pair has ${pair.length} items`);
  return [pair[0], pair[1]];
}

/** @param now the time of the rendering */
export function globalsAt(now: Date): ReadonlyMap<string, Value> {
  const namespace = new Callable("namespace", (args) => {
    const attributes = new Map<string, Value>();
    for (const [key, value] of dictOf(args).pairs()) attributes.set(checkAttribute(write(key)), value);
    return new Namespace(attributes);
  });
  const joiner = new Callable("joiner", (args) => {
    const [separator = ", "] = bind("joiner", "sep?", args);
    let used = false;
    return new Callable("joiner", () => (used ? separator : ((used = true), "")));
  });
  const functions = [
    callable("range", "/ start stop? step?", (first, second, step = 1n) => {
      const [start, stop] = second === undefined ? [0n, first] : [first, second];
      const parts = [start, stop, step].map((part) => {
        return asInteger(part) ?? fail("TypeError", `'${typeName(part)}' object cannot be interpreted as an integer`);
      }) as [bigint, bigint, bigint];
      return new Range(...parts);
    }),
    new Callable("dict", dictOf, new Map([["fromkeys", fromKeys]])),
    namespace,
    new Callable("cycler", ({ positional }) =>
      positional.length > 0 ? new Cycler(positional) : fail("RuntimeError", "at least one item has to be provided"),
    ),
    joiner,
    callable("raise_exception", "message", (message) => fail("TemplateError", write(message))),
    callable("strftime_now", "format", (format) => writeTime(write(format), now)),
    callable("lipsum", "n? html? min? max?", () => fail("NotSupported", "lipsum() writes random text")),
  ];
  return new Map(functions.map((one) => [one.name, one]));
}

/** Names with an underscore are refused, as in transformers. */
export function checkAttribute(name: string): string {
  return name.startsWith("_") ? fail("SecurityError", `a namespace cannot have the attribute ${represent(name)}`) : name;
}

const days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const months = "January February March April May June July August September October November December".split(" ");

/** Python's `strftime` in the C locale. */
export function writeTime(format: string, now: Date): string {
  const two = (value: number, fill = "0") => String(value).padStart(2, fill);
  const [hours, year] = [now.getHours(), now.getFullYear()];
  const start = new Date(year, 0, 1);
  const day = Math.round((new Date(year, now.getMonth(), now.getDate()).getTime() - start.getTime()) / 86_400_000) + 1;
  const isoDay = now.getDay() || 7;
  const thursday = new Date(year, now.getMonth(), now.getDate() + 4 - isoDay);
  const isoYear = thursday.getFullYear();
  const isoWeek = Math.ceil(((thursday.getTime() - new Date(isoYear, 0, 1).getTime()) / 86_400_000 + 1) / 7);
  const all: Record<string, () => string> = {
    a: () => (days[now.getDay()] ?? "").slice(0, 3),
    A: () => days[now.getDay()] ?? "",
    b: () => (months[now.getMonth()] ?? "").slice(0, 3),
    h: () => (months[now.getMonth()] ?? "").slice(0, 3),
    B: () => months[now.getMonth()] ?? "",
    c: () => writeTime("%a %b %e %H:%M:%S %Y", now),
    C: () => two(Math.floor(year / 100)),
    d: () => two(now.getDate()),
    D: () => writeTime("%m/%d/%y", now),
    e: () => two(now.getDate(), " "),
    f: () => String(now.getMilliseconds() * 1000).padStart(6, "0"),
    F: () => writeTime("%Y-%m-%d", now),
    g: () => two(isoYear % 100),
    G: () => String(isoYear),
    H: () => two(hours),
    I: () => two(hours % 12 || 12),
    j: () => String(day).padStart(3, "0"),
    k: () => two(hours, " "),
    l: () => two(hours % 12 || 12, " "),
    m: () => two(now.getMonth() + 1),
    M: () => two(now.getMinutes()),
    n: () => "\n",
    p: () => (hours < 12 ? "AM" : "PM"),
    P: () => (hours < 12 ? "am" : "pm"),
    r: () => writeTime("%I:%M:%S %p", now),
    R: () => writeTime("%H:%M", now),
    s: () => String(Math.floor(now.getTime() / 1000)),
    S: () => two(now.getSeconds()),
    t: () => "\t",
    T: () => writeTime("%H:%M:%S", now),
    u: () => String(isoDay),
    U: () => two(Math.floor((day + 6 - now.getDay()) / 7)),
    V: () => two(isoWeek),
    w: () => String(now.getDay()),
    W: () => two(Math.floor((day + 6 - ((now.getDay() + 6) % 7)) / 7)),
    x: () => writeTime("%m/%d/%y", now),
    X: () => writeTime("%H:%M:%S", now),
    y: () => two(year % 100),
    Y: () => String(year),
    // A time without a zone.
    z: () => "",
    Z: () => "",
    "%": () => "%",
  };
  return paid(format).replace(/%([-_0^#]?)([\s\S])/g, (whole_, flag: string, letter: string) => {
    const write_ = Object.hasOwn(all, letter) ? all[letter] : undefined;
    if (!write_) return whole_;
    const text = paid(write_());
    if (flag === "-") return text.replace(/^[0 ]+(?=\d)/, "");
    if (flag === "_") return text.replace(/^0+(?=\d)/, (zeros) => " ".repeat(zeros.length));
    return flag === "^" || flag === "#" ? text.toUpperCase() : flag === "0" ? text.replace(/^ +/, (blanks) => "0".repeat(blanks.length)) : text;
  });
}

export { plain, writeFloat };
