/** The functions of the override grammar: casts, sweeps, and modifiers of sweeps. */
import { nearest } from "../../nearest.ts";
import { plain } from "../tree/node.ts";
import { pythonFloat } from "../yaml/scalars.ts";
import {
  type Element,
  elementToNode,
  isFloatElement,
  isSweep,
  type NumberElement,
  type Sweep,
  type Value,
  ValueMistake,
} from "./value.ts";

type Call = (positional: Value[], named: ReadonlyMap<string, Value>) => Value;

const functions: Readonly<Record<string, Call>> = {
  int: cast(toInteger),
  float: cast(toFloat),
  str: cast(toText),
  bool: cast(toBoolean),
  json_str: (positional, named) => {
    const [value] = bind("json_str", ["value"], positional, named);
    if (value === undefined || isSweep(value)) throw new ValueMistake("json_str() takes one value");
    return { type: "text", value: JSON.stringify(plain(elementToNode(value, { kind: "default" }))) };
  },
  choice: (positional) => {
    if (positional.length === 0) throw new ValueMistake("choice() needs at least one value");
    const [first] = positional;
    if (positional.length === 1 && first?.type === "choice") {
      if (!first.simple) throw new ValueMistake("choice() within choice() is not supported");
      return { ...first, simple: false };
    }
    return { type: "choice", items: positional.map((item) => element("choice", item)), simple: false, shuffle: false };
  },
  range: (positional, named) => {
    const given = bind("range", ["start", "stop", "step"], positional, named);
    const [start, stop, step] = given.map((value) => (value === undefined ? undefined : number("range", value)));
    if (start === undefined) throw new ValueMistake("range() takes a stop, or start and stop, and a step");
    const one: NumberElement = { type: "number", value: 1, text: "1" };
    const zero: NumberElement = { type: "number", value: 0, text: "0" };
    const bounds = stop === undefined ? { start: zero, stop: start } : { start, stop };
    if (step?.value === 0) throw new ValueMistake("range() cannot take steps of 0");
    return { type: "range", ...bounds, step: step ?? one, shuffle: false };
  },
  interval: (positional, named) => {
    const [start, end] = bind("interval", ["start", "end"], positional, named);
    if (start === undefined || end === undefined) throw new ValueMistake("interval() takes a start and an end");
    return { type: "interval", start: number("interval", start), end: number("interval", end) };
  },
  glob: (positional, named) => {
    const [include, exclude] = bind("glob", ["include", "exclude"], positional, named);
    if (include === undefined) throw new ValueMistake("glob() takes patterns of options, e.g. glob(*)");
    return { type: "glob", include: patterns(include), exclude: exclude === undefined ? [] : patterns(exclude) };
  },
  /** Tags are notes for sweepers that search; they do not affect a sweep over all values. */
  tag: (positional, named) => {
    const sweep = named.get("sweep") ?? positional.at(-1);
    if (!isSweep(sweep)) throw new ValueMistake("tag() takes tags and, last, a sweep");
    const tags = named.has("sweep") ? positional : positional.slice(0, -1);
    if (tags.some(({ type }) => type !== "text")) throw new ValueMistake("tags are text");
    return sweep;
  },
  sort: (positional, named) => {
    const given = named.get("list") ?? named.get("sweep");
    const reversed = named.get("reverse");
    if (reversed !== undefined && reversed.type !== "boolean")
      throw new ValueMistake("sort(reverse=) takes true or false");
    return sort(given === undefined ? positional : [given], reversed?.type === "boolean" && reversed.value);
  },
  shuffle: (positional, named) => {
    const given = named.get("list") ?? named.get("sweep");
    const values = given === undefined ? positional : [given];
    const [only] = values;
    if (values.length === 1 && (only?.type === "choice" || only?.type === "range")) return { ...only, shuffle: true };
    if (values.length === 1) {
      throw new ValueMistake("shuffle() of one value would differ in each run; shuffle a sweep instead");
    }
    const items = values.map((item) => element("shuffle", item));
    return { type: "choice", items, simple: true, shuffle: true };
  },
};

/** @throws ValueMistake */
export function callFunction(name: string, positional: Value[], named: ReadonlyMap<string, Value>): Value {
  const known = Object.keys(functions);
  if (!Object.hasOwn(functions, name)) {
    const near = nearest(name, known);
    const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `use one of ${known.join(", ")}`;
    throw new ValueMistake(`${name}() is not a function; ${help} Put text with brackets in quotes.`);
  }
  return functions[name]!(positional, named);
}

function bind(
  name: string,
  parameters: readonly string[],
  positional: readonly Value[],
  named: ReadonlyMap<string, Value>,
): (Value | undefined)[] {
  const wrong = [...named.keys()].find((key) => parameters.indexOf(key) < positional.length);
  if (positional.length > parameters.length || wrong !== undefined) {
    throw new ValueMistake(`${name}() takes ${parameters.join(", ")}${wrong === undefined ? "" : `, not ${wrong}`}`);
  }
  return parameters.map((parameter, index) => positional[index] ?? named.get(parameter));
}

function element(name: string, value: Value): Element {
  if (isSweep(value)) throw new ValueMistake(`${name}() cannot contain another sweep`);
  return value;
}

function number(name: string, value: Value): NumberElement {
  if (value.type !== "number") throw new ValueMistake(`${name}() takes numbers`);
  return value;
}

function patterns(value: Value): string[] {
  const items = value.type === "list" ? value.items : [value];
  return items.map((item) => {
    if (item.type !== "text") throw new ValueMistake("glob() takes patterns as text or a list of text");
    return item.value;
  });
}

/** Casts also apply to the items of lists, the values of dicts and sweeps. */
function cast(scalar: (value: Element) => Element): Call {
  const apply = (value: Value): Value => {
    if (value.type === "list")
      return { type: "list", items: value.items.map((item) => element("a cast", apply(item))) };
    if (value.type === "dict") {
      return { type: "dict", entries: value.entries.map(([key, item]) => [key, element("a cast", apply(item))]) };
    }
    if (value.type === "choice") {
      return { ...value, items: value.items.map((item) => element("a cast", apply(item))), shuffle: false };
    }
    if (value.type === "range") {
      if (scalar !== toInteger && scalar !== toFloat)
        throw new ValueMistake("a range can be cast to int or float only");
      const end = (bound: NumberElement) => scalar(bound) as NumberElement;
      return { ...value, start: end(value.start), stop: end(value.stop), step: end(value.step), shuffle: false };
    }
    if (isSweep(value)) throw new ValueMistake(`${value.type}() cannot be cast`);
    return scalar(value);
  };
  return (positional, named) => {
    const value = named.get("value");
    if (value === undefined ? positional.length === 0 : positional.length > 0) {
      throw new ValueMistake("a cast takes one value, or several to sweep over");
    }
    if (value !== undefined) return apply(value);
    const [only, ...others] = positional;
    if (only !== undefined && others.length === 0) return apply(only);
    const items = positional.map((item) => element("a cast", apply(item)));
    return { type: "choice", items, simple: true, shuffle: false };
  };
}

const impossible = (value: Element, to: string) =>
  new ValueMistake(`${value.type === "text" ? JSON.stringify(value.value) : value.type} cannot be cast to ${to}`);

function toInteger(value: Element): Element {
  const found =
    value.type === "number"
      ? Math.trunc(value.value)
      : value.type === "boolean"
        ? Number(value.value)
        : value.type === "text" && /^\s*[+-]?\d+(?:_\d+)*\s*$/.test(value.value)
          ? Number(value.value.replaceAll("_", ""))
          : Number.NaN;
  if (!Number.isSafeInteger(found)) throw impossible(value, "int");
  return { type: "number", value: found, text: String(found) };
}

function toFloat(value: Element): Element {
  if (value.type === "number") return { ...value, text: pythonFloat(value.value) };
  if (value.type === "boolean")
    return { type: "number", value: Number(value.value), text: value.value ? "1.0" : "0.0" };
  const text = value.type === "text" ? value.value.trim().replace(/(?<=\d)_(?=\d)/g, "") : "";
  const special = /^([+-]?)(inf(?:inity)?|nan)$/i.exec(text);
  const found = special
    ? (special[1] === "-" ? -1 : 1) * (special[2]!.toLowerCase() === "nan" ? Number.NaN : Number.POSITIVE_INFINITY)
    : /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/.test(text)
      ? Number(text)
      : undefined;
  if (found === undefined) throw impossible(value, "float");
  return { type: "number", value: found, text: pythonFloat(found) };
}

function toText(value: Element): Element {
  switch (value.type) {
    case "text":
      return { type: "text", value: value.value };
    case "number":
      return { type: "text", value: isFloatElement(value) ? pythonFloat(value.value) : String(value.value) };
    case "boolean":
      return { type: "text", value: String(value.value) };
    default:
      throw impossible(value, "str");
  }
}

function toBoolean(value: Element): Element {
  if (value.type === "boolean") return value;
  if (value.type === "number") return { type: "boolean", value: value.value !== 0 };
  if (value.type === "text" && /^(?:true|false)$/i.test(value.value)) {
    return { type: "boolean", value: value.value.toLowerCase() === "true" };
  }
  throw impossible(value, "bool");
}

function sort(values: readonly Value[], reversed: boolean): Value {
  const [only] = values;
  if (only === undefined) throw new ValueMistake("sort() needs something to sort");
  if (values.length > 1)
    return sorted({ type: "choice", items: values.map((item) => element("sort", item)), simple: true, shuffle: false });
  if (only.type === "choice") return sorted(only);
  if (only.type === "list") return { type: "list", items: sortElements(only.items, reversed) };
  return only.type === "range" ? turned(only, reversed) : only;

  function sorted(sweep: Sweep & { type: "choice" }): Value {
    return { ...sweep, items: sortElements(sweep.items, reversed) };
  }
}

function sortElements(items: readonly Element[], reversed: boolean): Element[] {
  const direction = reversed ? -1 : 1;
  return [...items].sort((left, right) => direction * compare(left, right));
}

/** Compares numbers and booleans by size, and text by characters; mixed types cannot be compared. */
function compare(left: Element, right: Element): number {
  if (left.type === "text" && right.type === "text")
    return left.value < right.value ? -1 : Number(left.value > right.value);
  if ("value" in left && "value" in right && left.type !== "text" && right.type !== "text") {
    return Number(left.value) - Number(right.value);
  }
  throw new ValueMistake(`sort() cannot order ${left.type} and ${right.type}`);
}

/** Reverses a range unless it already has the wanted direction. */
function turned(range: Sweep & { type: "range" }, reversed: boolean): Value {
  const { start, stop, step } = range;
  const isTurned = reversed ? start.value < stop.value : start.value > stop.value;
  if (!isTurned) return range;
  const size = Math.abs(step.value) * (reversed ? -1 : 1);
  const isFloat = [start, stop, step].some(isFloatElement);
  const bound = (value: number): NumberElement => ({
    type: "number",
    value,
    text: isFloat ? pythonFloat(value) : String(value),
  });
  return { ...range, start: bound(stop.value + size), stop: bound(start.value + size), step: bound(-step.value) };
}
