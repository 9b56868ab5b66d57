/**
 * Parses a command-line override in Hydra's grammar: the values that it can have, their functions, the grammar of a value, and the override
 * around it. Knows neither the schema nor the composed tree.
 */
import { nearest } from "../../base/text.ts";
import { type Mistake, type Node, type Origin, oneLine, plain } from "../tree.ts";
import { isFloatText, pythonFloat } from "../yaml.ts";

export type Element =
  | { type: "null" }
  | { type: "boolean"; value: boolean }
  | NumberElement
  | { type: "text"; value: string; quote?: "'" | '"' }
  | { type: "list"; items: Element[] }
  | { type: "dict"; entries: [key: Element, value: Element][] };

/** `text`: the original spelling, which distinguishes `1` and `1.0`. */
export interface NumberElement {
  type: "number";
  value: number;
  text: string;
}

/** Several values, with one run for each. */
export type Sweep =
  /** `simple`: written `a,b` rather than `choice(a,b)`. */
  | { type: "choice"; items: Element[]; simple: boolean; shuffle: boolean }
  | { type: "range"; start: NumberElement; stop: NumberElement; step: NumberElement; shuffle: boolean }
  | { type: "interval"; start: Element; end: Element }
  /** Matches options of a config group; `*` and `?` as in a shell. */
  | { type: "glob"; include: string[]; exclude: string[] };

export type Value = Element | Sweep;

/** A mistake in a value; the caller adds the override in which it occurs. */
export class ValueMistake extends Error {}

const sweepTypes: ReadonlySet<string> = new Set(["choice", "range", "interval", "glob"]);

export function isSweep(value: Value | undefined): value is Sweep {
  return value !== undefined && sweepTypes.has(value.type);
}

export const isFloatElement = ({ value, text }: NumberElement) => !Number.isInteger(value) || isFloatText(text);

export function elementToNode(element: Element, origin: Origin): Node {
  switch (element.type) {
    case "null":
      return { kind: "value", origin, value: null };
    case "text":
      return { kind: "value", origin, value: element.value };
    case "boolean":
      return { kind: "value", origin, value: element.value, text: String(element.value) };
    case "number":
      return { kind: "value", origin, value: element.value, text: element.text };
    case "list":
      return { kind: "list", origin, items: element.items.map((item) => elementToNode(item, origin)) };
    case "dict": {
      const entries = new Map(element.entries.map(([key, value]) => [keyText(key), elementToNode(value, origin)]));
      return { kind: "map", origin, entries: [...entries].map(([name, node]) => ({ name, origin, node })) };
    }
  }
}

export function keyText(key: Element): string {
  return key.type === "text" || key.type === "number" ? String(key.value) : elementText(key);
}

/** The element as typed on a command line. */
export function elementText(element: Element): string {
  switch (element.type) {
    case "null":
      return "null";
    case "boolean":
      return String(element.value);
    case "number":
      return isFloatElement(element) ? pythonFloat(element.value) : String(element.value);
    case "text":
      return element.quote === undefined ? escapeSpecial(element.value) : quoted(element.value, element.quote);
    case "list":
      return `[${element.items.map(elementText).join(",")}]`;
    case "dict":
      return `{${element.entries.map(([key, value]) => `${elementText(key)}:${elementText(value)}`).join(",")}}`;
  }
}

const escapeSpecial = (text: string) => text.replace(/[\\()[\]{}:=, \t]/g, "\\$&");

/** Quotes are escaped, and so are the backslashes before one. */
function quoted(text: string, quote: string): string {
  const escaped = text.replace(new RegExp(`(\\\\*)(${quote}|$)`, "g"), (_, slashes: string, end: string) =>
    end === "" ? slashes + slashes : `${slashes}${slashes}\\${end}`,
  );
  return `${quote}${escaped}${quote}`;
}

// The functions of the override grammar: casts, sweeps, and modifiers of sweeps.

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
function callFunction(name: string, positional: Value[], named: ReadonlyMap<string, Value>): Value {
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

// The part of an override after `=`: Hydra's grammar of quoted and raw text, numbers, lists, dicts, functions and
// sweeps. Raw text may contain spaces and references, but `()[]{}:=,` only after a backslash.

export const blank = /[ \t]*/y;

/** Unquoted text up to a mark. Tokens: a run of escapes, blanks, a single character. */
export const keyToken = /(?:\\[\\()[\]{}:=, \t])+|[ \t]+|[\w\-/\\+.$%*@?|]/y;

/** Joins tokens and removes the backslashes of escapes. */
export const undoEscapes = (tokens: readonly string[]) =>
  tokens.map((token) => (token.length > 1 && token.startsWith("\\") ? token.replace(/\\(.)/g, "$1") : token)).join("");

const unsigned = "(?:0|[1-9](?:_?\\d)*)";
const point = `(?:${unsigned}\\.(?:\\d(?:_?\\d)*)?|\\.\\d(?:_?\\d)*)`;
const integer = new RegExp(`^[+-]?${unsigned}$`);
const float = new RegExp(`^[+-]?(?:${point}|(?:${point}|${unsigned})[eE][+-]?\\d(?:_?\\d)*|inf|nan)$`, "i");

const identifier = /[A-Za-z_][\w-]*/y;
const opening = /[ \t]*\([ \t]*/y;
const argumentName = /([A-Za-z_][\w-]*)[ \t]*=[ \t]*/y;
/** A run of escapes, a reference, a colon with its blanks, a reserved-free character. */
const rawToken = /(?:\\[\\()[\]{}:=, \t])+|\$\{[^}]+\}|[ \t]*:[ \t]*|[ \t]+|[\w\-/\\+.$%*@?|]/y;
const quotedText = { '"': /"((?:[^"\\]|\\.)*)"/sy, "'": /'((?:[^'\\]|\\.)*)'/sy };
const deepest = 100;

/** @throws ValueMistake */
function parseValue(text: string): Value {
  const reader = new Reader(text);
  reader.skip(blank);
  if (reader.done) return { type: "text", value: "" };
  const first = reader.element();
  if (reader.done) return first;
  const items = [first];
  while (reader.take(",")) items.push(reader.element());
  if (!reader.done) reader.unexpected();
  return { type: "choice", items: items.map(plainElement), simple: true, shuffle: false };
}

function plainElement(value: Value): Element {
  if (isSweep(value)) throw new ValueMistake("a sweep cannot be part of another value");
  return value;
}

/** A scalar without quotes: null, a boolean, a number, or text. */
export function scalarElement(raw: string): Element {
  const text = raw.replace(/^[ \t]+/, "");
  if (/^null$/i.test(text)) return { type: "null" };
  if (/^(?:true|false)$/i.test(text)) return { type: "boolean", value: text.toLowerCase() === "true" };
  if (integer.test(text) || float.test(text)) return { type: "number", value: numberOf(text), text };
  return { type: "text", value: text };
}

function numberOf(text: string): number {
  const digits = text.replaceAll("_", "").toLowerCase();
  if (/^[+-]?inf$/.test(digits)) return digits.startsWith("-") ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  if (/^[+-]?nan$/.test(digits)) return Number.NaN;
  const value = Number(digits);
  if (integer.test(text) && !Number.isSafeInteger(value)) {
    throw new ValueMistake(
      `${text.slice(0, 40)} is an integer beyond 2^53, which cannot be kept exactly; put it in quotes`,
    );
  }
  return value === 0 && integer.test(text) ? 0 : value;
}

/** A position in a text, and what the parsers of values and of references do with it. */
export class TextReader {
  protected at = 0;
  protected depth = 0;
  constructor(protected readonly text: string) {}

  /** Moves past a match of a sticky pattern. */
  skip(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match !== null) this.at = pattern.lastIndex;
    return match;
  }

  protected skipAll(pattern: RegExp): string[] {
    const tokens: string[] = [];
    for (let match = this.skip(pattern); match !== null; match = this.skip(pattern)) tokens.push(match[0]);
    return tokens;
  }
}

class Reader extends TextReader {
  get done(): boolean {
    return this.at === this.text.length;
  }

  /** A mark with the blanks around it. */
  take(mark: "," | "[" | "]" | "{" | "}" | ")" | ":"): boolean {
    const start = this.at;
    // Blanks belong to text where an opening mark follows.
    if (mark !== "[" && mark !== "{") this.skip(blank);
    if (this.text[this.at] !== mark) {
      this.at = start;
      return false;
    }
    this.at++;
    if (mark !== "]" && mark !== "}" && mark !== ")") this.skip(blank);
    return true;
  }

  unexpected(): never {
    const rest = this.text.slice(this.at);
    if (rest === "") throw new ValueMistake("the value ends too early: a bracket is open or an item is missing");
    const [character = ""] = rest;
    const column = `at character ${this.at + 1} of the value`;
    if (character === "'" || character === '"') {
      throw new ValueMistake(`a quote ${column} has no match, or is inside unquoted text`);
    }
    const help = /[()[\]{}:=,\\]/.test(character)
      ? `put a backslash before it or put the text in quotes`
      : "put the text in quotes";
    throw new ValueMistake(`${JSON.stringify(character)} ${column} is not understood; ${help}`);
  }

  element(): Value {
    if (++this.depth > deepest) throw new ValueMistake(`brackets are nested deeper than ${deepest} levels`);
    const value = this.list() ?? this.dict() ?? this.quoted() ?? this.functionCall() ?? this.raw(rawToken);
    this.depth--;
    return value;
  }

  private list(): Element | undefined {
    if (!this.take("[")) return undefined;
    const items: Element[] = [];
    if (this.take("]")) return { type: "list", items };
    do items.push(plainElement(this.element()));
    while (this.take(","));
    if (!this.take("]")) this.unexpected();
    return { type: "list", items };
  }

  private dict(): Element | undefined {
    if (!this.take("{")) return undefined;
    const entries: [Element, Element][] = [];
    if (this.take("}")) return { type: "dict", entries };
    do {
      const key = this.raw(keyToken);
      if (!this.take(":")) this.unexpected();
      entries.push([key, plainElement(this.element())]);
    } while (this.take(","));
    if (!this.take("}")) this.unexpected();
    return { type: "dict", entries };
  }

  private quoted(): Element | undefined {
    const quote = this.text[this.at];
    if (quote !== "'" && quote !== '"') return undefined;
    const match = this.skip(quotedText[quote]);
    if (match === null) this.unexpected();
    const [, inside = ""] = match;
    return { type: "text", value: unescapeQuoted(inside, quote), quote };
  }

  private functionCall(): Value | undefined {
    const start = this.at;
    const name = this.skip(identifier)?.[0];
    if (name === undefined || !this.skip(opening)) {
      this.at = start;
      return undefined;
    }
    const positional: Value[] = [];
    const named = new Map<string, Value>();
    if (this.take(")")) return callFunction(name, positional, named);
    do {
      const argument = this.skip(argumentName)?.[1];
      const value = this.element();
      if (argument !== undefined) named.set(argument, value);
      else if (named.size > 0) throw new ValueMistake(`${name}(): a positional argument follows a named one`);
      else positional.push(value);
    } while (this.take(","));
    if (!this.take(")")) this.unexpected();
    return callFunction(name, positional, named);
  }

  /** Text up to the next mark, without blanks at either end and without the backslashes of escapes. */
  private raw(token: RegExp): Element {
    const tokens = this.skipAll(token);
    while (/^[ \t]+$/.test(tokens.at(-1) ?? "")) tokens.pop();
    if (tokens.length === 0) this.unexpected();
    const spelled = tokens.join("");
    const scalar = scalarElement(spelled);
    if (scalar.type !== "text") return scalar;
    return { type: "text", value: undoEscapes(tokens) };
  }
}

/** Backslashes are escapes only before a quote and at the end: there, two stand for one, and `\"` for a quote. */
function unescapeQuoted(text: string, quote: string): string {
  return text.replace(new RegExp(`\\\\+(?=$|${quote})`, "g"), (slashes) => "\\".repeat(Math.floor(slashes.length / 2)));
}

// Parses a command-line override: its kind, its key or config group, and its value.

export interface Override {
  /** `key=`, `+key=`, `++key=`, `~key`. */
  kind: "change" | "add" | "force-add" | "delete";
  /** A dotted key, or a config group: `rllm/backend`. */
  key: string;
  /** The package in `group@package=option`. */
  package: string | undefined;
  /** Undefined for a bare `~key`. */
  value: Value | undefined;
  /** The override as typed. */
  text: string;
}

const name = "[A-Za-z_$][\\w\\-$]*";
const part = `(?:${name}|0|[1-9](?:_?\\d)*)`;
const dotted = `(?:${part}(?:\\.${part})+|${name})`;
const group = "[A-Za-z_][\\w-]*(?:/[A-Za-z_][\\w-]*)+";
const keyPattern = new RegExp(`^(?<key>${group}|${dotted})(?:@(?<package>${dotted}|))?$`);
const longest = 100_000;

const kinds = { "": "change", "+": "add", "++": "force-add", "~": "delete" } as const;

/** @returns the override, or a mistake */
export function parseOverride(text: string): Override | Mistake {
  const where = oneLine(text);
  if (text.length > longest) return { where, message: `is longer than ${longest} characters` };
  const equals = text.indexOf("=");
  const left = equals < 0 ? text : text.slice(0, equals);
  const mark = (["++", "+", "~"] as const).find((each) => left.startsWith(each)) ?? "";
  const spelled = left.slice(mark.length);
  const kind = kinds[mark];
  if (equals < 0 && kind !== "delete") {
    return { where, message: "an override has the form key=value, e.g. training.learning_rate=1e-4" };
  }
  if (spelled === "") return { where, message: "the key before = is missing" };
  const match = keyPattern.exec(spelled);
  if (match === null) return { where, message: keyMessage(spelled) };
  const { key, package: place } = match.groups as { key: string; package?: string };
  try {
    const value = equals < 0 ? undefined : parseValue(text.slice(equals + 1));
    return { kind, key, package: place, value, text };
  } catch (error) {
    if (!(error instanceof ValueMistake)) throw error;
    return { where, message: error.message };
  }
}

export const isMistake = (parsed: Override | Mistake): parsed is Mistake => "message" in parsed;

function keyMessage(spelled: string): string {
  const shown = oneLine(spelled, 60);
  if (/\s/.test(spelled))
    return `the key ${JSON.stringify(shown)} contains spaces; write key=value without spaces before =`;
  if (spelled.includes("[")) {
    return `the key ${shown} contains brackets; items of a list are spelled key.0, and a list is set as a whole: key=[1,2]`;
  }
  if (spelled.startsWith("-")) return `${shown} is not an option here, and keys do not begin with a hyphen`;
  return `${shown} is neither a dotted key (training.eps) nor a config group (rllm/backend)`;
}
