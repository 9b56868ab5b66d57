/** Attributes, items, methods and arithmetic of Python's values. Methods that change a value are refused, as in transformers. */

import { formatText, percent, textMethods, whole } from "./texts.ts";
import {
  asInteger,
  type CallArguments,
  Callable,
  checkSize,
  Dict,
  equals,
  fail,
  isNumber,
  letters,
  listOf,
  Markup,
  Namespace,
  paid,
  Range,
  represent,
  Special,
  sequence,
  spend,
  Tuple,
  typeName,
  Undefined,
  type Value,
  View,
  write,
} from "./values.ts";

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
export function bind(name: string, signature: string, { positional, named }: CallArguments): Value[] {
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
export type Builtin = readonly [signature: string, implementation: Implementation];

const method = (name: string, signature: string, self: Value, implementation: Implementation) =>
  new Callable(`<built-in method ${name} of ${typeName(self)} object at 0x7f0000000000>`, (args) =>
    implementation(self, ...bind(name, signature, args)),
  );

// Attributes and items.

export const undefinedMember = (object: Value, key: Value) =>
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
  get: [
    "/ key default?",
    (self, key, otherwise = null) => ((self as Dict).has(key) ? (self as Dict).get(key) : otherwise),
  ],
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

export function attribute(object: Value, name: string): Value | undefined {
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
    if (name === "real") return asInteger(object) ?? object;
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
      return typeof value === "string" || (value instanceof Markup && escapesArguments)
        ? escapeHtml(value).text
        : value;
    };
    const given = (value: Value, index: number): Value => {
      if (escapesArguments && !(name === "replace" && index === 0)) return escaped(value);
      return value instanceof Markup ? value.text : value;
    };
    const values = positional.map(given);
    return marked(
      found.call({ positional: values, named: new Map([...named].map(([key, one]) => [key, escaped(one)])) }),
    );
  });
}

export function marked(value: Value): Value {
  if (typeof value === "string") return new Markup(value);
  if (Array.isArray(value)) return value.map(marked);
  return value instanceof Tuple ? new Tuple(value.items.map(marked)) : value;
}

const unsafe = (object: Value, name: string) =>
  new Undefined(`access to attribute '${name}' of '${typeName(object)}' object is unsafe.`);

export const fromKeys = new Callable("fromkeys", (args) => {
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
  if (items === undefined) return fail("TypeError", `'${typeName(value)}' object is not subscriptable`);
  const parts = [start, stop, step].map((part) => {
    if (part !== null && asInteger(part) === undefined) fail("TypeError", "slice indices must be integers or None");
    return part === null ? undefined : whole(part);
  });
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
  if (operator === "%" && typeof left === "string") return percent(left, textOf(right));
  for (const side of [left, right]) if (side instanceof Undefined) side.fail();
  if (left instanceof Markup || right instanceof Markup) return markupArithmetic(operator, left, right);
  if (isNumber(left) && isNumber(right)) return calculate(operator, left, right);
  if (operator === "+") {
    if (typeof left === "string" && typeof right === "string") return paid(left + right);
    if (Array.isArray(left) && Array.isArray(right)) return bought([...left, ...right]);
    if (left instanceof Tuple && right instanceof Tuple) return new Tuple(bought([...left.items, ...right.items]));
  }
  if (operator === "*") {
    const [text, times] = asInteger(left) === undefined ? [left, asInteger(right)] : [right, asInteger(left)];
    const items = typeof text === "string" ? text : sequence(text);
    if (times !== undefined && items !== undefined) {
      if (times > 2n ** 62n) fail("OverflowError", "cannot fit 'int' into an index-sized integer");
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
  return fail("TypeError", `unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
}

export const textOf = (value: Value): Value => (value instanceof Markup ? value.text : value);

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
      if (a < 0 && !Number.isInteger(b)) return fail("TypeError", "complex numbers are not supported");
      if (Number.isFinite(a) && Number.isFinite(b) && !Number.isFinite(a ** b))
        fail("OverflowError", "the result is too large");
      return a ** b;
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

const htmlEscapes: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;" };
export const escapeHtml = (value: Value) =>
  value instanceof Markup
    ? value
    : new Markup(paid(write(value).replace(/[&<>'"]/g, (mark) => htmlEscapes[mark] ?? mark)));

export function pairOf(value: Value): [Value, Value] {
  const pair = listOf(value);
  if (pair.length !== 2) fail("ValueError", `a pair has ${pair.length} items`);
  return [pair[0], pair[1]];
}
