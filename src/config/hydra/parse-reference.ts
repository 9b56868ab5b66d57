/**
 * Parses OmegaConf's references inside text: `${a.b}`, `${.x}`, `${a[0]}`, `${oc.env:HOME,none}`, also nested.
 * Handles only the syntax; `resolve.ts` computes the values.
 */
import { blank, type Element, keyToken, scalarElement, TextReader, undoEscapes } from "./overrides.ts";

export type Part = string | Reference;

export type Reference =
  /** `up`: the number of leading dots; 0 starts at the root. Brackets are converted to names. */
  | { kind: "key"; up: number; names: Part[]; text: string }
  | { kind: "call"; name: Part[]; arguments: Argument[]; text: string };

export type Argument =
  | { type: "scalar"; element: Element }
  | { type: "parts"; parts: Part[] }
  | { type: "list"; items: Argument[] }
  | { type: "dict"; entries: [key: Element, value: Argument][] };

/** A mistake in a reference; the caller adds the location of the value. */
export class ReferenceMistake extends Error {}

const deepest = 100;
const keyName = /[^\\{}()[\]:. \t'"]+/y;
const resolverName = /^[A-Za-z_][\w-]*$/;
const rawRun = /(?:\\[\\()[\]{}:=, \t])+|[ \t]*:[ \t]*|[ \t]+|[\w\-/\\+.%*@?|]|\$(?!\{)/y;

/** Whether OmegaConf would look for references in the value; escaped ones count, because they must be unescaped. */
export const mayRefer = (value: unknown): value is string => typeof value === "string" && value.includes("${");

/** Splits text into references and the text between them, with escapes (`\${`) removed. @throws ReferenceMistake */
export function parseText(text: string): Part[] {
  return new Reader(text).parts();
}

/** Parses a single resolver argument, for `oc.decode`. @throws ReferenceMistake */
export function parseArgument(text: string): Argument {
  return new Reader(text).wholeArgument();
}

class Reader extends TextReader {
  parts(): Part[] {
    const parts = this.partsUntil(undefined);
    return parts.length === 0 ? [""] : parts;
  }

  wholeArgument(): Argument {
    const argument = this.argument();
    if (this.at < this.text.length) this.unexpected();
    return argument;
  }

  /** Up to an unescaped quote, or to the end. Backslashes are escapes only before a reference and before that quote. */
  private partsUntil(quote: string | undefined): Part[] {
    const parts: Part[] = [];
    const add = (text: string) => {
      if (text !== "" && typeof parts.at(-1) === "string") parts.push(parts.pop() + text);
      else if (text !== "") parts.push(text);
    };
    const stop = quote === undefined ? /(?<!\\)(\\*)(\$\{|$)/g : new RegExp(`(?<!\\\\)(\\\\*)(\\$\\{|${quote})`, "g");
    for (;;) {
      stop.lastIndex = this.at;
      const match = stop.exec(this.text);
      if (match === null) throw new ReferenceMistake(`a quote (${quote}) is not closed`);
      const [whole, slashes, mark] = match as unknown as [string, string, string];
      add(this.text.slice(this.at, match.index));
      this.at = match.index + whole.length;
      if (mark === "" && quote === undefined) {
        add(slashes);
        return parts;
      }
      add("\\".repeat(Math.floor(slashes.length / 2)));
      if (slashes.length % 2 === 1) add(mark);
      else if (mark === "${") parts.push(this.reference(match.index + slashes.length));
      else return parts;
    }
  }

  /** Parses the text after `${`. */
  private reference(start: number): Reference {
    if (++this.depth > deepest) throw new ReferenceMistake(`references are nested deeper than ${deepest} levels`);
    this.skip(blank);
    const up = this.skip(/\.*/y)?.[0].length ?? 0;
    const names: Part[] = [];
    let bracketed = false;
    do {
      if (this.take("[")) {
        bracketed = true;
        names.push(this.name());
        if (!this.take("]")) this.unexpected();
      } else names.push(this.name());
    } while (this.text[this.at] === "[" || this.take("."));
    this.skip(blank);
    const text = () => this.text.slice(start, this.at);
    this.depth--;
    if (this.take("}")) return { kind: "key", up, names, text: text() };
    const isResolver = names.every((name) => typeof name !== "string" || resolverName.test(name));
    if (!isResolver || up > 0 || bracketed || !this.take(":")) this.unexpected();
    this.skip(blank);
    this.depth++;
    const given = this.sequence("}");
    this.depth--;
    return { kind: "call", name: names, arguments: given, text: text() };
  }

  private name(): Part {
    const start = this.at;
    if (this.take("${")) return this.reference(start);
    return this.skip(keyName)?.[0] ?? this.unexpected();
  }

  /** Arguments or items up to the closing mark; an omitted one is an empty text. */
  private sequence(close: "}" | "]"): Argument[] {
    const items: Argument[] = [];
    if (this.close(close)) return items;
    const empty: Argument = { type: "scalar", element: { type: "text", value: "" } };
    for (;;) {
      this.skip(blank);
      const next = this.text[this.at];
      items.push(next === "," || next === close ? empty : this.argument());
      if (this.close(close)) return items;
      this.skip(blank);
      if (!this.take(",")) this.unexpected();
      this.skip(blank);
    }
  }

  private argument(): Argument {
    if (++this.depth > deepest) throw new ReferenceMistake(`references are nested deeper than ${deepest} levels`);
    const argument = this.list() ?? this.dict() ?? this.quoted() ?? this.raw();
    this.depth--;
    return argument;
  }

  private list(): Argument | undefined {
    if (!this.take("[")) return undefined;
    this.skip(blank);
    return { type: "list", items: this.sequence("]") };
  }

  private dict(): Argument | undefined {
    if (!this.take("{")) return undefined;
    this.skip(blank);
    const entries: [Element, Argument][] = [];
    if (this.close("}")) return { type: "dict", entries };
    for (;;) {
      const key = this.skipAll(keyToken);
      if (key.length === 0) this.unexpected();
      this.skip(blank);
      if (!this.take(":")) this.unexpected();
      this.skip(blank);
      entries.push([scalarOf(key), this.argument()]);
      if (this.close("}")) return { type: "dict", entries };
      this.skip(blank);
      if (!this.take(",")) this.unexpected();
      this.skip(blank);
    }
  }

  private quoted(): Argument | undefined {
    const quote = this.text[this.at];
    if (quote !== "'" && quote !== '"') return undefined;
    this.at++;
    const parts = this.partsUntil(quote);
    // A single reference in quotes becomes text.
    return { type: "parts", parts: parts.length === 1 && typeof parts[0] === "object" ? ["", ...parts] : parts };
  }

  private raw(): Argument {
    const parts: Part[] = [];
    let tokens: string[] = [];
    const flush = () => {
      if (tokens.length > 0) parts.push(undoEscapes(tokens));
    };
    for (;;) {
      const start = this.at;
      if (this.take("${")) {
        flush();
        tokens = [];
        parts.push(this.reference(start));
        continue;
      }
      const token = this.skip(rawRun)?.[0];
      if (token === undefined) break;
      tokens.push(token);
    }
    // Blanks are part of the argument at the end of the text, but not before the mark that ends it.
    if (this.at < this.text.length && /^[ \t]+$/.test(tokens.at(-1) ?? "")) tokens.pop();
    if (parts.length === 0) {
      if (tokens.length === 0) this.unexpected();
      return { type: "scalar", element: scalarOf(tokens) };
    }
    flush();
    return { type: "parts", parts };
  }

  private take(mark: string): boolean {
    if (!this.text.startsWith(mark, this.at)) return false;
    this.at += mark.length;
    return true;
  }

  private close(mark: string): boolean {
    const start = this.at;
    this.skip(blank);
    if (this.take(mark)) return true;
    this.at = start;
    return false;
  }

  private unexpected(): never {
    const character = this.text[this.at];
    if (character === undefined) throw new ReferenceMistake("a reference is not closed: } is missing");
    const shown = this.text.slice(Math.max(0, this.at - 20), this.at);
    throw new ReferenceMistake(
      `a reference is not understood at ${JSON.stringify(character)} after ${JSON.stringify(shown)}; write \${section.key}, \${.key} or \${resolver:argument}`,
    );
  }
}

function scalarOf(tokens: readonly string[]): Element {
  const text = undoEscapes(tokens);
  // Escaped values, and values with blanks at either end, are text.
  const spelled = tokens.join("");
  return spelled === text && spelled === spelled.trim() ? scalarElement(spelled) : { type: "text", value: text };
}
