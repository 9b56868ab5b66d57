/**
 * The part of an override after `=`: Hydra's grammar of quoted and raw text, numbers, lists, dicts, functions and
 * sweeps. Raw text may contain spaces and references, but `()[]{}:=,` only after a backslash.
 */
import { callFunction } from "./override-functions.ts";
import { type Element, isSweep, type Value, ValueMistake } from "./value.ts";

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
export function parseValue(text: string): Value {
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
