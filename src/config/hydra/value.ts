/** Values of the override grammar, and their conversion to nodes and text. */
import type { Node } from "../tree/node.ts";
import type { Origin } from "../tree/origin.ts";
import { isFloatText, pythonFloat } from "../yaml/scalars.ts";

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
