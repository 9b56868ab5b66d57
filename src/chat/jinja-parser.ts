/** Parses chat templates, which are Jinja as Python's jinja2 reads it with `trim_blocks` and `lstrip_blocks`. Takes linear time. */

import { isPythonSpace, stripPython } from "./jinja-values.ts";

// Nodes.

export type Expression =
  | { type: "constant"; value: unknown }
  | { type: "name"; name: string }
  | { type: "list" | "tuple"; items: Expression[] }
  | { type: "dict"; pairs: [Expression, Expression][] }
  | { type: "attribute"; object: Expression; name: string }
  | { type: "item"; object: Expression; key: Expression }
  | { type: "slice"; parts: (Expression | undefined)[] }
  | { type: "call"; callee: Expression; args: Arguments }
  | { type: "filter" | "test"; input: Expression; name: string; args: Arguments }
  | { type: "unary"; operator: "-" | "+" | "not"; operand: Expression }
  | { type: "binary"; operator: string; left: Expression; right: Expression }
  | { type: "and" | "or"; left: Expression; right: Expression }
  | { type: "concat"; parts: Expression[] }
  | { type: "compare"; first: Expression; rest: { operator: string; operand: Expression }[] }
  | { type: "condition"; test: Expression; then: Expression; otherwise: Expression | undefined }
  /** The text of a `{% filter %}` or `{% set %}` block. */
  | { type: "block-text" };

export interface Arguments {
  positional: Expression[];
  named: [string, Expression][];
  rest?: Expression | undefined;
  namedRest?: Expression | undefined;
}

export type Target =
  | { type: "name"; name: string }
  | { type: "member"; name: string; attribute: string }
  | { type: "tuple"; items: Target[] };

export interface Signature {
  parameters: { name: string; default: Expression | undefined }[];
  body: Statement[];
  /** Names that the body reads, if they are special: `caller`, `varargs`, `kwargs`. */
  reads: ReadonlySet<string>;
}

export type Statement =
  | { type: "text"; text: string }
  | { type: "output"; expression: Expression }
  | { type: "if"; branches: { test: Expression; body: Statement[] }[]; otherwise: Statement[] }
  | {
      type: "for";
      target: Target;
      iterable: Expression;
      test: Expression | undefined;
      recursive: boolean;
      body: Statement[];
      otherwise: Statement[];
    }
  | { type: "set"; target: Target; value: Expression }
  | { type: "set-block"; target: Target; filter: Expression; body: Statement[] }
  | { type: "macro"; name: string; signature: Signature }
  | { type: "call-block"; call: Expression & { type: "call" }; signature: Signature }
  | { type: "filter-block"; filter: Expression; body: Statement[] }
  | { type: "with"; targets: Target[]; values: Expression[]; body: Statement[] }
  | { type: "scope"; body: Statement[] }
  | { type: "break" | "continue" };

// Lexer.

interface Token {
  type: "text" | "name" | "string" | "number" | "operator" | "output-start" | "output-end" | "tag-start" | "tag-end" | "end";
  value: string;
  constant?: unknown;
  line: number;
}

const operators = ["**", "//", "==", "!=", "<=", ">=", ..."+-/*%~[](){}><=.:|,;"];
const closing: Record<string, string> = { "(": ")", "[": "]", "{": "}" };
const digits = /(?:0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*)/iy;
const float = /(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy;
const word = /[\p{L}\p{Nl}\p{Mn}\p{Mc}\p{Nd}\p{Pc}]+/uy;

/** Where the tags of a template are. */
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
      return this.closeTag(found.at, "%}");
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
        return this.closeTag(at, end);
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
      return this.push("number", number, isInteger ? BigInt(plain) : Number(plain));
    }
    const name = match(word, source, at);
    if (name !== undefined) {
      if (!/^[\p{L}\p{Nl}_]/u.test(name)) throw this.error(`${JSON.stringify(name)} is not a name`);
      return this.push("name", name);
    }
    const mark = source[at] ?? "";
    if (mark === "'" || mark === '"') {
      let end = at + 1;
      while (end < source.length && source[end] !== mark) end += source[end] === "\\" ? 2 : 1;
      if (end >= source.length) throw this.error("a string has no end");
      return this.push("string", source.slice(at, end + 1), unescape(source.slice(at + 1, end)));
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
function unescape(text: string): string {
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

// Parser.

export interface Known {
  filters: Readonly<Record<string, unknown>>;
  tests: Readonly<Record<string, unknown>>;
}

/** Python's compiler has a limit of about this size, too. */
const deepest = 150;
const longestSource = 2 ** 21;

/** @throws Error with the line if the template is not Jinja, or uses a filter or a test that does not exist */
export function parseTemplate(source: string, known: Known): Statement[] {
  if (source.length > longestSource) throw new Error(`it has ${source.length} characters; the limit is ${longestSource}`);
  return new Parser(new Lexer(source).run(), known).template();
}

const compared = ["==", "!=", "<", "<=", ">", ">="];
const refusedTags = ["extends", "include", "import", "from"];

class Parser {
  private at = 0;
  private depth = 0;
  /** In a branch of a condition, jinja2 looks filters and tests up only when they run. */
  private branches = 0;
  /** Filters and tests that do not exist, outside of such branches. */
  private unknown: string[] = [];
  private readonly readers: Set<string>[] = [];
  private readonly tokens: readonly Token[];
  private readonly known: Known;

  constructor(tokens: readonly Token[], known: Known) {
    this.tokens = tokens;
    this.known = known;
  }

  template(): Statement[] {
    const body = this.statements([]);
    if (this.unknown[0] !== undefined) throw new Error(this.unknown[0]);
    return body;
  }

  private get token(): Token {
    return this.tokens[this.at] as Token;
  }

  private is(type: Token["type"], value?: string, ahead = 0): boolean {
    const token = this.tokens[this.at + ahead];
    return token?.type === type && (value === undefined || token.value === value);
  }

  private skip(type: Token["type"], value?: string): boolean {
    if (!this.is(type, value)) return false;
    this.at++;
    return true;
  }

  private expect(type: Token["type"], value?: string): string {
    if (!this.is(type, value)) throw this.error(`expected ${value ?? type}, got ${this.token.value || this.token.type}`);
    this.at++;
    return (this.tokens[this.at - 1] as Token).value;
  }

  private error(message: string): Error {
    return new Error(`line ${this.token.line}: ${message}`);
  }

  private deeper<Result>(parse: () => Result): Result {
    if (++this.depth > deepest) throw this.error("it is nested too deeply");
    const result = parse();
    this.depth--;
    return result;
  }

  /** Until a tag with one of these names, which is the current token then. Without names, until the end. */
  private statements(ends: readonly string[]): Statement[] {
    const body: Statement[] = [];
    for (;;) {
      if (this.is("end")) {
        if (ends.length > 0) throw this.error(`{% ${ends.at(-1)} %} is missing`);
        return body;
      }
      if (this.is("text")) {
        body.push({ type: "text", text: this.token.value });
        this.at++;
      } else if (this.skip("output-start")) {
        body.push({ type: "output", expression: this.tuple() });
        this.expect("output-end");
      } else {
        this.expect("tag-start");
        if (this.token.type === "name" && ends.includes(this.token.value)) return body;
        body.push(...this.deeper(() => this.statement()));
        this.expect("tag-end");
      }
    }
  }

  /** After the tag's own parts: its body, up to the tag that ends it. */
  private block(...ends: string[]): Statement[] {
    this.skip("operator", ":");
    this.expect("tag-end");
    return this.statements(ends);
  }

  private blockUntil(end: string): Statement[] {
    const body = this.block(end);
    this.at++;
    return body;
  }

  private statement(): Statement[] {
    const tag = this.expect("name");
    switch (tag) {
      case "for":
        return [this.loop()];
      case "if":
        return [this.condition()];
      case "set":
        return [this.assignment()];
      case "macro": {
        const name = this.expect("name");
        return [{ type: "macro", name, signature: this.signature("endmacro", true) }];
      }
      case "call": {
        const parameters = this.is("operator", "(") ? this.parameters() : [];
        const call = this.expression();
        if (call.type !== "call") throw this.error("{% call %} needs a call");
        return [{ type: "call-block", call, signature: this.signature("endcall", false, parameters) }];
      }
      case "filter": {
        const filter = this.filters({ type: "block-text" }, true);
        return [{ type: "filter-block", filter, body: this.blockUntil("endfilter") }];
      }
      case "with":
        return [this.withBlock()];
      case "generation":
        return [{ type: "scope", body: this.blockUntil("endgeneration") }];
      case "block": {
        const name = this.expect("name");
        while (this.skip("name", "scoped") || this.skip("name", "required"));
        const body = this.blockUntil("endblock");
        this.skip("name", name);
        return [{ type: "scope", body }];
      }
      case "break":
      case "continue":
        return [{ type: tag }];
      case "print": {
        const body: Statement[] = [];
        while (!this.is("tag-end")) {
          if (body.length > 0) this.expect("operator", ",");
          body.push({ type: "output", expression: this.expression() });
        }
        return body;
      }
      default:
        if (refusedTags.includes(tag)) throw this.error(`{% ${tag} %} needs other templates, which a model does not have`);
        throw this.error(`the tag ${tag} is not supported`);
    }
  }

  private loop(): Statement {
    const target = this.target("in");
    this.expect("name", "in");
    const iterable = this.tuple(false, "recursive");
    const test = this.skip("name", "if") ? this.expression() : undefined;
    const recursive = this.skip("name", "recursive");
    const body = this.block("endfor", "else");
    const otherwise = this.expect("name") === "else" ? this.blockUntil("endfor") : [];
    return { type: "for", target, iterable, test, recursive, body, otherwise };
  }

  private condition(): Statement {
    const branches: { test: Expression; body: Statement[] }[] = [];
    this.branches++;
    for (;;) {
      const test = this.tuple(false);
      branches.push({ test, body: this.block("elif", "else", "endif") });
      const next = this.expect("name");
      if (next === "elif") continue;
      const otherwise = next === "else" ? this.blockUntil("endif") : [];
      this.branches--;
      return { type: "if", branches, otherwise };
    }
  }

  private assignment(): Statement {
    const target = this.target();
    if (this.skip("operator", "=")) return { type: "set", target, value: this.tuple() };
    const filter = this.filters({ type: "block-text" });
    return { type: "set-block", target, filter, body: this.blockUntil("endset") };
  }

  private withBlock(): Statement {
    const targets: Target[] = [];
    const values: Expression[] = [];
    while (!this.is("tag-end")) {
      if (targets.length > 0) this.expect("operator", ",");
      targets.push(this.target());
      this.expect("operator", "=");
      values.push(this.expression());
    }
    return { type: "with", targets, values, body: this.blockUntil("endwith") };
  }

  private parameters(): Signature["parameters"] {
    const parameters: Signature["parameters"] = [];
    this.expect("operator", "(");
    while (!this.is("operator", ")")) {
      if (parameters.length > 0) this.expect("operator", ",");
      const name = this.expect("name");
      const given = this.skip("operator", "=") ? this.expression() : undefined;
      if (!given && parameters.at(-1)?.default) throw this.error(`the parameter ${name} needs a default`);
      parameters.push({ name, default: given });
    }
    this.at++;
    return parameters;
  }

  private signature(end: string, own: boolean, given: Signature["parameters"] = []): Signature {
    const reads = new Set<string>();
    this.readers.push(reads);
    const parameters = own ? this.parameters() : given;
    const body = this.blockUntil(end);
    this.readers.pop();
    return { parameters, body, reads };
  }

  private target(until?: string): Target {
    const items: Target[] = [];
    let isTuple = false;
    for (;;) {
      const ends = until !== undefined && this.is("name", until);
      if (isTuple && (ends || this.is("operator", "=") || this.is("operator", ")"))) break;
      items.push(this.oneTarget());
      if (!this.skip("operator", ",")) break;
      isTuple = true;
    }
    return isTuple ? { type: "tuple", items } : (items[0] as Target);
  }

  private oneTarget(): Target {
    if (this.skip("operator", "(") || this.is("operator", "[")) {
      if (this.is("operator", "[")) throw this.error("a list cannot be assigned to");
      const target = this.deeper(() => this.target());
      this.expect("operator", ")");
      return target;
    }
    const name = this.expect("name");
    if (["true", "True", "false", "False", "none", "None"].includes(name)) throw this.error(`cannot assign to ${name}`);
    if (this.skip("operator", ".")) return { type: "member", name, attribute: this.expect("name") };
    return { type: "name", name };
  }

  // Expressions, from the weakest operator to the strongest.

  private tuple(withCondition = true, until?: string, parenthesized = false): Expression {
    const items: Expression[] = [];
    let isTuple = false;
    for (;;) {
      const { type, value } = this.token;
      if (type === "output-end" || type === "tag-end" || (type === "operator" && value === ")")) break;
      if (until !== undefined && this.is("name", until)) break;
      items.push(withCondition ? this.expression() : this.or());
      if (!this.skip("operator", ",")) break;
      isTuple = true;
    }
    if (!isTuple && items[0]) return items[0];
    if (!isTuple && !parenthesized) throw this.error("expected an expression");
    return { type: "tuple", items };
  }

  private expression(): Expression {
    return this.deeper(() => {
      const known = this.unknown.length;
      let then = this.or();
      while (this.skip("name", "if")) {
        this.unknown.length = known;
        this.branches++;
        const test = this.or();
        const otherwise = this.skip("name", "else") ? this.expression() : undefined;
        this.branches--;
        then = { type: "condition", test, then, otherwise };
      }
      return then;
    });
  }

  private or(): Expression {
    let left = this.and();
    while (this.skip("name", "or")) left = { type: "or", left, right: this.and() };
    return left;
  }

  private and(): Expression {
    let left = this.not();
    while (this.skip("name", "and")) left = { type: "and", left, right: this.not() };
    return left;
  }

  private not(): Expression {
    if (!this.skip("name", "not")) return this.comparison();
    return { type: "unary", operator: "not", operand: this.deeper(() => this.not()) };
  }

  private comparison(): Expression {
    const first = this.sum();
    const rest: { operator: string; operand: Expression }[] = [];
    for (;;) {
      if (this.token.type === "operator" && compared.includes(this.token.value)) {
        const operator = this.expect("operator");
        rest.push({ operator, operand: this.sum() });
      } else if (this.skip("name", "in")) {
        rest.push({ operator: "in", operand: this.sum() });
      } else if (this.is("name", "not") && this.is("name", "in", 1)) {
        this.at += 2;
        rest.push({ operator: "not in", operand: this.sum() });
      } else return rest.length === 0 ? first : { type: "compare", first, rest };
    }
  }

  private binary(signs: readonly string[], next: () => Expression): Expression {
    let left = next();
    while (this.token.type === "operator" && signs.includes(this.token.value)) {
      const operator = this.expect("operator");
      left = { type: "binary", operator, left, right: next() };
    }
    return left;
  }

  private sum(): Expression {
    return this.binary(["+", "-"], () => this.concat());
  }

  private concat(): Expression {
    const parts = [this.product()];
    while (this.skip("operator", "~")) parts.push(this.product());
    return parts.length === 1 ? (parts[0] as Expression) : { type: "concat", parts };
  }

  private product(): Expression {
    return this.binary(["*", "/", "//", "%"], () => this.binary(["**"], () => this.unary()));
  }

  private unary(withFilters = true): Expression {
    const sign = this.is("operator", "-") ? "-" : this.is("operator", "+") ? "+" : undefined;
    let node: Expression;
    if (sign) {
      this.at++;
      node = { type: "unary", operator: sign, operand: this.deeper(() => this.unary(false)) };
    } else node = this.primary();
    node = this.postfix(node);
    if (!withFilters) return node;
    for (;;) {
      if (this.is("operator", "|")) node = this.filters(node);
      else if (this.skip("name", "is")) node = this.test(node);
      else if (this.is("operator", "(")) node = { type: "call", callee: node, args: this.arguments() };
      else return node;
    }
  }

  private primary(): Expression {
    const { type, value, constant } = this.token;
    if (type === "name") {
      this.at++;
      if (value === "true" || value === "True") return { type: "constant", value: true };
      if (value === "false" || value === "False") return { type: "constant", value: false };
      if (value === "none" || value === "None") return { type: "constant", value: null };
      for (const reads of this.readers) reads.add(value);
      return { type: "name", name: value };
    }
    if (type === "string") {
      const parts: unknown[] = [];
      for (; this.is("string"); this.at++) parts.push(this.token.constant);
      return { type: "constant", value: parts.join("") };
    }
    if (type === "number") {
      this.at++;
      return { type: "constant", value: constant };
    }
    if (this.skip("operator", "(")) {
      const inner = this.tuple(true, undefined, true);
      this.expect("operator", ")");
      return inner;
    }
    if (this.skip("operator", "[")) return { type: "list", items: this.list("]", () => this.expression()) };
    if (this.skip("operator", "{")) {
      const pair = (): [Expression, Expression] => {
        const key = this.expression();
        this.expect("operator", ":");
        return [key, this.expression()];
      };
      return { type: "dict", pairs: this.list("}", pair) };
    }
    throw this.error(`unexpected ${value || type}`);
  }

  private list<Item>(end: string, parse: () => Item): Item[] {
    const items: Item[] = [];
    while (!this.is("operator", end)) {
      if (items.length > 0) this.expect("operator", ",");
      if (this.is("operator", end)) break;
      items.push(parse());
    }
    this.at++;
    return items;
  }

  private postfix(start: Expression): Expression {
    let node = start;
    for (;;) {
      if (this.skip("operator", ".")) {
        const { type, value, constant } = this.token;
        this.at++;
        if (type === "name") node = { type: "attribute", object: node, name: value };
        else if (typeof constant === "bigint") {
          node = { type: "item", object: node, key: { type: "constant", value: constant } };
        } else throw this.error("expected a name or an integer after the dot");
      } else if (this.skip("operator", "[")) {
        const keys: Expression[] = [];
        while (!this.is("operator", "]")) {
          if (keys.length > 0) this.expect("operator", ",");
          keys.push(this.subscript());
        }
        this.at++;
        const key: Expression = keys.length === 1 ? (keys[0] as Expression) : { type: "tuple", items: keys };
        node = { type: "item", object: node, key };
      } else if (this.is("operator", "(")) node = { type: "call", callee: node, args: this.arguments() };
      else return node;
    }
  }

  private subscript(): Expression {
    const part = () => {
      const empty = this.is("operator", ":") || this.is("operator", "]") || this.is("operator", ",");
      return empty ? undefined : this.expression();
    };
    const first = this.is("operator", ":") ? undefined : this.expression();
    if (!this.skip("operator", ":")) return first as Expression;
    const parts = [first, part(), undefined as Expression | undefined];
    if (this.skip("operator", ":")) parts[2] = part();
    return { type: "slice", parts };
  }

  private arguments(): Arguments {
    const args: Arguments = { positional: [], named: [] };
    const check = (good: boolean) => {
      if (!good) throw this.error("the arguments of a call are in the wrong order");
    };
    this.expect("operator", "(");
    for (let first = true; !this.is("operator", ")"); first = false) {
      if (!first) this.expect("operator", ",");
      if (this.is("operator", ")")) break;
      if (this.skip("operator", "*")) {
        check(!args.rest && !args.namedRest);
        args.rest = this.expression();
      } else if (this.skip("operator", "**")) {
        check(!args.namedRest);
        args.namedRest = this.expression();
      } else if (this.is("name") && this.is("operator", "=", 1)) {
        check(!args.namedRest);
        const name = this.expect("name");
        this.at++;
        args.named.push([name, this.expression()]);
      } else {
        check(!args.rest && !args.namedRest && args.named.length === 0);
        args.positional.push(this.expression());
      }
    }
    this.at++;
    return args;
  }

  private dotted(): string {
    let name = this.expect("name");
    while (this.skip("operator", ".")) name += `.${this.expect("name")}`;
    return name;
  }

  private check(kind: "filter" | "test", name: string): void {
    if (Object.hasOwn(this.known[`${kind}s`], name) || this.branches > 0) return;
    this.unknown.push(`line ${this.token.line}: no ${kind} is named ${name}`);
  }

  private filters(start: Expression, inline = false): Expression {
    let node = start;
    for (let first = inline; first || this.skip("operator", "|"); first = false) {
      const name = this.dotted();
      this.check("filter", name);
      const args = this.is("operator", "(") ? this.arguments() : { positional: [], named: [] };
      node = { type: "filter", input: node, name, args };
    }
    return node;
  }

  private test(input: Expression): Expression {
    const negated = this.skip("name", "not");
    const name = this.dotted();
    this.check("test", name);
    let args: Arguments = { positional: [], named: [] };
    const { type, value } = this.token;
    if (this.is("operator", "(")) args = this.arguments();
    else if (
      type === "string" ||
      type === "number" ||
      (type === "name" && !["else", "or", "and"].includes(value)) ||
      (type === "operator" && (value === "[" || value === "{"))
    ) {
      if (this.is("name", "is")) throw this.error("tests with is cannot be chained");
      args.positional.push(this.postfix(this.primary()));
    }
    const node: Expression = { type: "test", input, name, args };
    return negated ? { type: "unary", operator: "not", operand: node } : node;
  }
}
