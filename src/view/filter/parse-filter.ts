/**
 * The filter language: `reward<0.2 and role=judge and text~"sorry"`.
 *
 * expression = all { "or" all }; all = one { "and" one }; one = ["not"] one | "(" expression ")" | field operator value.
 * A value is a word or text in double quotes, in which \" and \\ are escapes.
 */
import { UserError } from "../../errors.ts";

const operators = ["=", "!=", "<", "<=", ">", ">=", "~", "!~"] as const;
export type Operator = (typeof operators)[number];

export type Filter =
  | { kind: "and" | "or"; parts: Filter[] }
  | { kind: "not"; part: Filter }
  | { kind: "comparison"; field: Token; operator: Operator; value: Token };

export interface Token {
  text: string;
  /** Place in the filter, in UTF-16 code units, and length there. */
  at: number;
  length: number;
  kind: "word" | "quoted" | "operator" | "parenthesis" | "end";
}

/** A mistake in a filter, with its place. */
export class FilterError extends UserError {
  readonly at: number;
  readonly length: number;

  constructor(message: string, { at, length }: Pick<Token, "at" | "length">, hint?: string) {
    super(`${message} (at character ${at + 1} of the filter)`, hint === undefined ? {} : { hint });
    this.at = at;
    this.length = length;
  }
}

/** Deeper nesting is refused. */
const deepest = 100;

/** @throws FilterError */
export function parseFilter(text: string): Filter {
  const tokens = readTokens(text);
  let next = 0;
  const peek = () => tokens[next]!;
  const take = () => tokens[next++]!;
  const isWord = (word: string) => peek().kind === "word" && peek().text.toLowerCase() === word;

  function joined(word: "and" | "or", depth: number, part: (depth: number) => Filter): Filter {
    const parts = [part(depth)];
    while (isWord(word)) {
      take();
      parts.push(part(depth));
    }
    return parts.length === 1 ? parts[0]! : { kind: word, parts };
  }
  const expression = (depth: number): Filter => joined("or", depth, all);
  const all = (depth: number): Filter => joined("and", depth, one);

  function one(depth: number): Filter {
    if (depth > deepest) throw new FilterError(`more than ${deepest} levels of parentheses`, peek());
    if (isWord("not")) {
      take();
      return { kind: "not", part: one(depth + 1) };
    }
    if (peek().text === "(" && peek().kind === "parenthesis") {
      const open = take();
      const inner = expression(depth + 1);
      if (peek().text !== ")" || peek().kind !== "parenthesis")
        throw unexpected(peek(), `")" for the "(" at character ${open.at + 1}`);
      take();
      return inner;
    }
    const field = take();
    if (field.kind !== "word") throw unexpected(field, 'a field such as "reward"');
    const operator = take();
    if (operator.kind !== "operator")
      throw unexpected(operator, `an operator (${operators.join(" ")}) after "${field.text}"`);
    const value = take();
    if (value.kind !== "word" && value.kind !== "quoted") throw unexpected(value, `a value after "${operator.text}"`);
    return { kind: "comparison", field, operator: operator.text as Operator, value };
  }

  const filter = expression(0);
  if (peek().kind !== "end") throw unexpected(peek(), '"and", "or" or the end');
  return filter;
}

function unexpected(found: Token, expected: string): FilterError {
  const what = found.kind === "end" ? "the filter ends" : `found "${found.text}"`;
  return new FilterError(`expected ${expected}, but ${what}`, found);
}

const pattern = /\s+|"(?:[^"\\]|\\.)*"|!=|<=|>=|!~|[=<>~]|[()]|[^\s"()=<>~!]+|./gsu;

function readTokens(text: string): Token[] {
  const tokens: Token[] = [];
  for (const { 0: part, index: at } of text.matchAll(pattern)) {
    if (part.trim() === "") continue;
    const token = { at, length: part.length };
    if (part === "(" || part === ")") tokens.push({ ...token, text: part, kind: "parenthesis" });
    else if ((operators as readonly string[]).includes(part)) tokens.push({ ...token, text: part, kind: "operator" });
    else if (part === '"') throw new FilterError("the closing quote is missing", { at, length: text.length - at });
    else if (part.startsWith('"')) {
      tokens.push({ ...token, text: part.slice(1, -1).replaceAll(/\\(.)/gs, "$1"), kind: "quoted" });
    } else if (part === "!") throw new FilterError('"!" is not an operator', token, 'write "not", "!=" or "!~"');
    else tokens.push({ ...token, text: part, kind: "word" });
  }
  return [...tokens, { text: "", at: text.length, length: 0, kind: "end" }];
}
