/** Parses chat templates, which are Jinja as jinja2 reads it in transformers. */

import { type Token, tokenize } from "./lexer.ts";

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
  if (source.length > longestSource)
    throw new Error(`it has ${source.length} characters; the limit is ${longestSource}`);
  return new Parser(tokenize(source), known).template();
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
    if (!this.is(type, value))
      throw this.error(`expected ${value ?? type}, got ${this.token.value || this.token.type}`);
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
        if (ends.length > 0) throw this.error(`{% ${ends.find((end) => end.startsWith("end"))} %} is missing`);
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
        if (refusedTags.includes(tag))
          throw this.error(`{% ${tag} %} needs other templates, which a model does not have`);
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
