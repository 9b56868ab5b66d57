/** Divides a chat template into text and the tokens of its tags, with `trim_blocks` and `lstrip_blocks`. Takes linear time. */

import { isPythonSpace, stripPython } from "./values.ts";

export interface Token {
  type:
    | "text"
    | "name"
    | "string"
    | "number"
    | "operator"
    | "output-start"
    | "output-end"
    | "tag-start"
    | "tag-end"
    | "end";
  value: string;
  constant?: unknown;
  line: number;
}

const operators = ["**", "//", "==", "!=", "<=", ">=", ..."+-/*%~[](){}><=.:|,;"];
const closing: Record<string, string> = { "(": ")", "[": "]", "{": "}" };
const digits = /(?:0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*)/iy;
const float = /(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy;
const word = /[\p{L}\p{Nl}\p{Mn}\p{Mc}\p{Nd}\p{Pc}]+/uy;

/** @throws Error with the line */
export const tokenize = (source: string): Token[] => new Lexer(source).run();

class Lexer {
  readonly tokens: Token[] = [];
  private readonly source: string;
  private at = 0;
  private line = 1;
  private counted = 0;

  constructor(source: string) {
    const lines = source.replace(/\r\n?/g, "\n");
    this.source = lines.endsWith("\n") ? lines.slice(0, -1) : lines;
  }

  run(): Token[] {
    const { source } = this;
    let lineStarts = true;
    while (this.at < source.length) {
      const start = this.nextTag(this.at);
      const kind = source[start + 1];
      if (start === source.length) {
        this.push("text", source.slice(this.at));
        break;
      }
      const sign = source[start + 2] === "-" || source[start + 2] === "+" ? source[start + 2] : "";
      this.push("text", this.trimmedBefore(source.slice(this.at, start), sign, kind !== "{", lineStarts));
      const inside = start + 2 + (sign ?? "").length;
      if (kind === "#") this.skipComment(inside);
      else if (kind === "%" && this.word("raw", inside, ["-%}", "%}"]) !== undefined) this.readRaw(inside);
      else this.readTag(inside, kind === "{" ? "output" : "tag");
      lineStarts = source[this.at - 1] === "\n";
    }
    this.push("end", "");
    return this.tokens;
  }

  private nextTag(from: number): number {
    for (let at = this.source.indexOf("{", from); at >= 0; at = this.source.indexOf("{", at + 1)) {
      const next = this.source[at + 1];
      if (next === "{" || next === "%" || next === "#") return at;
    }
    return this.source.length;
  }

  /** A `-` removes white space before a tag, and a tag alone at the start of its line loses its indentation. */
  private trimmedBefore(text: string, sign: string | undefined, isBlock: boolean, lineStarts: boolean): string {
    if (sign === "-") return stripPython(text, "end");
    if (sign === "+" || !isBlock) return text;
    const newline = text.lastIndexOf("\n") + 1;
    const indentation = text.slice(newline);
    const alone = (newline > 0 || lineStarts) && indentation !== "" && stripPython(indentation, "end") === "";
    return alone ? text.slice(0, newline) : text;
  }

  /** Moves behind the end of a tag at `at`, with the white space that it removes. */
  private closeTag(at: number, end: string): void {
    const { source } = this;
    const minus = source[at] === "-";
    this.at = at + (minus || source[at] === "+" ? 1 : 0) + 2;
    if (minus) this.at = this.skipSpace(this.at);
    else if (source[at] !== "+" && end !== "}}" && source[this.at] === "\n") this.at++;
  }

  private skipSpace(from: number): number {
    let at = from;
    while (at < this.source.length && isPythonSpace(this.source[at] ?? "")) at++;
    return at;
  }

  private skipComment(from: number): void {
    const end = this.source.indexOf("#}", from);
    if (from >= this.source.length) this.at = from;
    if (from >= this.source.length) return;
    if (end < 0) throw this.error("a comment has no #}");
    const before = this.source[end - 1];
    this.closeTag(end > from && (before === "-" || before === "+") ? end - 1 : end, "#}");
  }

  /** @returns where the tag ends if it consists of this word; undefined if it does not */
  private word(name: string, from: number, ends: string[]): { at: number; end: string } | undefined {
    const start = this.skipSpace(from);
    if (!this.source.startsWith(name, start)) return undefined;
    const at = this.skipSpace(start + name.length);
    const end = ends.find((one) => this.source.startsWith(one, at));
    return end === undefined ? undefined : { at, end };
  }

  private readRaw(inside: number): void {
    const begin = this.word("raw", inside, ["-%}", "%}"]);
    if (!begin) throw this.error("a raw block has no end");
    const start = begin.end === "-%}" ? this.skipSpace(begin.at + 3) : begin.at + 2;
    for (let at = this.source.indexOf("{%", start); at >= 0; at = this.source.indexOf("{%", at + 2)) {
      const sign = this.source[at + 2] === "-" || this.source[at + 2] === "+" ? this.source[at + 2] : "";
      const found = this.word("endraw", at + 2 + (sign ?? "").length, ["-%}", "+%}", "%}"]);
      if (found === undefined) continue;
      const lineStarts = this.source[start - 1] === "\n";
      this.push("text", this.trimmedBefore(this.source.slice(start, at), sign, true, lineStarts));
      this.closeTag(found.at, "%}");
      return;
    }
    throw this.error("a raw block has no {% endraw %}");
  }

  private readTag(from: number, kind: "output" | "tag"): void {
    const { source } = this;
    const end = kind === "output" ? "}}" : "%}";
    this.push(`${kind}-start`, "");
    const open: string[] = [];
    this.at = from;
    for (;;) {
      this.at = this.skipSpace(this.at);
      const { at } = this;
      if (at >= source.length) throw this.error(`a tag has no ${end}`);
      const signed = source[at] === "-" || (source[at] === "+" && kind === "tag");
      if (open.length === 0 && source.startsWith(end, at + (signed ? 1 : 0))) {
        this.push(`${kind}-end`, "");
        this.closeTag(at, end);
        return;
      }
      this.readToken(open);
    }
  }

  private readToken(open: string[]): void {
    const { source, at } = this;
    const number = (source[at - 1] === "." ? undefined : match(float, source, at)) ?? match(digits, source, at);
    if (number !== undefined) {
      const plain = number.replaceAll("_", "");
      const isInteger = match(digits, source, at) === number;
      if (isInteger && number.length > 4300) throw this.error("an integer has over 4300 digits");
      this.push("number", number, isInteger ? BigInt(plain) : Number(plain));
      return;
    }
    const name = match(word, source, at);
    if (name !== undefined) {
      if (!/^[\p{L}\p{Nl}_]/u.test(name)) throw this.error(`${JSON.stringify(name)} is not a name`);
      this.push("name", name);
      return;
    }
    const mark = source[at] ?? "";
    if (mark === "'" || mark === '"') {
      let end = at + 1;
      while (end < source.length && source[end] !== mark) end += source[end] === "\\" ? 2 : 1;
      if (end >= source.length) throw this.error("a string has no end");
      this.push("string", source.slice(at, end + 1), readEscapes(source.slice(at + 1, end)));
      return;
    }
    const operator = operators.find((one) => source.startsWith(one, at));
    if (operator === undefined) throw this.error(`unexpected character ${JSON.stringify(mark)}`);
    if (closing[operator]) open.push(closing[operator]);
    else if (")]}".includes(operator) && open.pop() !== operator) throw this.error(`unexpected ${operator}`);
    this.push("operator", operator);
  }

  private push(type: Token["type"], value: string, constant?: unknown): void {
    if (type === "text") {
      if (value !== "") this.tokens.push({ type, value, line: this.line });
      return;
    }
    for (; this.counted < this.at; this.counted++) if (this.source.charCodeAt(this.counted) === 10) this.line++;
    this.tokens.push({ type, value, constant, line: this.line });
    this.at += value.length;
  }

  private error(message: string): Error {
    const line = this.source.slice(0, this.at).split("\n").length;
    return new Error(`line ${line}: ${message}`);
  }
}

function match(pattern: RegExp, source: string, at: number): string | undefined {
  pattern.lastIndex = at;
  return pattern.exec(source)?.[0];
}

const escapes: Record<string, string> = {
  "\n": "",
  "\\": "\\",
  "'": "'",
  '"': '"',
  a: "\x07",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
  v: "\v",
};

/** Python's `unicode-escape`, which jinja2 applies after it has escaped what is not ASCII. */
function readEscapes(text: string): string {
  if (!text.includes("\\")) return text;
  const ascii = text.replace(/[^\0-\x7f]/gu, (letter) => {
    const code = letter.codePointAt(0) ?? 0;
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
  return ascii.replace(/\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-7]{1,3}|[\s\S])/g, (all, body: string) => {
    const first = body[0] ?? "";
    if (body.length > 1 && "xuU".includes(first)) return String.fromCodePoint(Number.parseInt(body.slice(1), 16));
    if (/[0-7]/.test(first)) return String.fromCodePoint(Number.parseInt(body, 8));
    if ("xuUN".includes(first)) throw new Error(`the escape ${all} in a string is not complete`);
    return escapes[first] ?? all;
  });
}
