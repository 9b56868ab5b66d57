/** JSON read as written: strings, numbers and the order of keys are found in the text, and no integer is rounded. */

/** How far a text could be read. `"cut"`: it ends inside the value. `"other"`: at `end` it is not such a value. */
export interface Skipped {
  state: "whole" | "cut" | "other";
  end: number;
}

const spaces = new Set(" \t\n\r");

export function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && text.charAt(at).trim() === "") at++;
  return at;
}

/** Reads over a JSON string, which has no line ends. */
function skipString(text: string, from: number): Skipped {
  for (let at = from + 1; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === 0x5c) at++;
    else if (code === 0x22) return { state: "whole", end: at + 1 };
    else if (code < 0x20) return { state: "other", end: at };
  }
  return { state: "cut", end: text.length };
}

/** Reads over one JSON value, with white space before it. Linear, without recursion, and it stops at the first mistake. */
export function skipJson(text: string, from: number): Skipped {
  const literal = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
  /** Closing brackets of what is open. */
  const open: string[] = [];
  let at = from;
  let next: "value" | "first value" | "key" | "first key" | "comma" = "value";
  for (;;) {
    while (at < text.length && spaces.has(text.charAt(at))) at++;
    if (at >= text.length) return { state: "cut", end: at };
    const character = text.charAt(at);
    if (next === "comma") {
      if (character === ",") next = open.at(-1) === "}" ? "key" : "value";
      else if (character === open.at(-1)) open.pop();
      else return { state: "other", end: at };
      at++;
    } else if (character === open.at(-1) && (next === "first value" || next === "first key")) {
      open.pop();
      next = "comma";
      at++;
    } else if (character === '"') {
      const string = skipString(text, at);
      if (string.state !== "whole") return string;
      at = string.end;
      if (next === "key" || next === "first key") {
        while (at < text.length && spaces.has(text.charAt(at))) at++;
        if (at >= text.length) return { state: "cut", end: at };
        if (text.charAt(at++) !== ":") return { state: "other", end: at - 1 };
        next = "value";
      } else next = "comma";
    } else if (next === "key" || next === "first key") return { state: "other", end: at };
    else if (character === "{" || character === "[") {
      open.push(character === "{" ? "}" : "]");
      next = character === "{" ? "first key" : "first value";
      at++;
    } else {
      literal.lastIndex = at;
      const found = literal.exec(text)?.[0];
      if (found === undefined) return { state: "other", end: at };
      at += found.length;
      next = "comma";
    }
    if (next === "comma" && open.length === 0) return { state: "whole", end: at };
  }
}

/** The text of a key's value in the text of an object. As in `JSON.parse`, the last of equal keys counts. */
export function memberText(object: string, key: string): string | undefined {
  let found: string | undefined;
  let at = skipSpace(object, 0) + 1;
  for (;;) {
    at = skipSpace(object, at);
    const name = skipJson(object, at);
    const start = object.indexOf(":", name.end) + 1;
    if (name.state !== "whole" || start === 0) return found;
    const value = skipJson(object, start);
    if (value.state !== "whole") return found;
    if (JSON.parse(object.slice(at, name.end)) === key) found = object.slice(start, value.end).trim();
    at = skipSpace(object, value.end) + 1;
  }
}

/** The texts of the items in the text of a list. */
export function itemTexts(list: string): string[] {
  const items: string[] = [];
  let at = skipSpace(list, 0) + 1;
  for (;;) {
    const item = skipJson(list, at);
    if (item.state !== "whole") return items;
    items.push(list.slice(at, item.end).trim());
    at = skipSpace(list, item.end) + 1;
  }
}

const manyDigits = /\d{16}/;

/**
 * `JSON.parse` that rounds no integer: one beyond 2^53 is its digits as a string, as in Parquet files. `writtenJson` knows the text
 * of its objects.
 *
 * @example
 * parseJson('{"order": 2512292042121000001}') // { order: "2512292042121000001" }
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  const exact: unknown = manyDigits.test(text) ? JSON.parse(withQuotedIntegers(text)) : value;
  if (losesSpelling.test(text)) rememberText(text, 0, exact, 0);
  return exact;
}

/** `JSON.parse`, of which `writtenJson` knows the text. */
export function parseWritten(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (losesSpelling.test(text)) rememberText(text, 0, value, 0);
  return value;
}

/** Floats, large integers, and keys that JavaScript moves to the front. */
const losesSpelling = /\d\.\d|\d[eE][+-]?\d|-0|\d{16}|"\d+"\s*:/;

const texts = new WeakMap<object, string>();
const deepestText = 50;

function rememberText(text: string, from: number, value: unknown, depth: number): void {
  if (typeof value !== "object" || value === null || depth > deepestText) return;
  const isList = Array.isArray(value);
  let at = skipSpace(text, from) + 1;
  const start = at - 1;
  for (let index = 0; ; index++) {
    let key: string | number = index;
    at = skipSpace(text, at);
    if (text.charAt(at) === "}" || text.charAt(at) === "]") break;
    if (!isList) {
      const name = skipJson(text, at);
      key = JSON.parse(text.slice(at, name.end)) as string;
      at = text.indexOf(":", name.end) + 1;
    }
    rememberText(text, at, (value as Record<string | number, unknown>)[key], depth + 1);
    at = skipSpace(text, skipJson(text, at).end);
    if (text.charAt(at) !== ",") break;
    at++;
  }
  if (!isList) texts.set(value, text.slice(start, at + 1));
}

/** The text of an object that `parseJson` read, if JavaScript would write its numbers or the order of its keys differently. */
export const writtenJson = (value: object): string | undefined => texts.get(value);

/** @param text valid JSON */
function withQuotedIntegers(text: string): string {
  const stringOrNumber = /["\d-]/g;
  const number = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
  const parts: string[] = [];
  let from = 0;
  for (let found = stringOrNumber.exec(text); found !== null; found = stringOrNumber.exec(text)) {
    const at = found.index;
    if (found[0] === '"') {
      stringOrNumber.lastIndex = skipString(text, at).end;
      continue;
    }
    number.lastIndex = at;
    const digits = number.exec(text)?.[0] ?? "";
    stringOrNumber.lastIndex = at + digits.length;
    if (!/^-?\d+$/.test(digits) || Number.isSafeInteger(Number(digits))) continue;
    parts.push(text.slice(from, at), `"${digits}"`);
    from = at + digits.length;
  }
  return [...parts, text.slice(from)].join("");
}
