/**
 * The filter language over episodes, such as `reward<0.2 and role=judge`: its fields, its grammar, and its translation to SQL on the
 * viewer's index. The page and `hone view` share it.
 */
import { UserError } from "../base/errors.ts";
import { nearest } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import { failureKinds, terminationReasons } from "../trajectories/types.ts";

// The fields, and their columns in the index.

export interface Field {
  type: "number" | "text" | "boolean";
  about: string;
  /** Known values, for suggestions. */
  values?: string[] | undefined;
  /** A column of `trajectories`; `text` has its own table. */
  column: string;
  /** The value may be unknown: `reward=unknown`. */
  nullable?: true;
  /** Its column in `gradings`, which finds any part of it. */
  graded?: "explanation" | "message";
  /** A field of single trajectories. An episode matches if one of its trajectories does. */
  perTrajectory?: true;
}

const ofDetails = (column: string) => `SELECT ${column} FROM details WHERE details.episode = trajectories.episode`;
const ofFailure = (column: string) => `CASE WHEN failure IS NOT NULL THEN (${ofDetails(column)}) END`;

const boundaries = ["engine", "set_up", "workflow", "environment", "reward", "timeout"];

const fields: Readonly<Record<string, Field>> = {
  step: { type: "number", column: "step", about: "training step, or the step before a validation" },
  kind: { type: "text", column: "kind", about: "train or validation", values: ["train", "validation"] },
  task: { type: "text", column: "task", about: "id of the task" },
  rollout: { type: "number", column: "rollout", about: "number of the rollout within its task" },
  id: { type: "text", column: "task || ':' || rollout", about: "id of the episode, task:rollout" },
  role: { type: "text", column: "role", perTrajectory: true, about: "role of a trajectory" },
  reward: { type: "number", column: "reward", nullable: true, perTrajectory: true, about: "reward of a trajectory" },
  advantage: {
    type: "number",
    column: "advantage",
    nullable: true,
    perTrajectory: true,
    about: "mean advantage of a trajectory's tokens",
  },
  correct: { type: "boolean", column: "correct", nullable: true, about: "whether the task was solved" },
  signal: {
    type: "boolean",
    column: "signal",
    nullable: true,
    perTrajectory: true,
    about: "whether the rewards of its group differ",
  },
  termination: { type: "text", column: "termination", about: "why the episode ended", values: [...terminationReasons] },
  failed: { type: "boolean", column: "failure IS NOT NULL", about: "whether the rollout failed" },
  failure: {
    type: "text",
    column: "failure",
    nullable: true,
    about: "whose failure it was",
    values: [...failureKinds],
  },
  boundary: { type: "text", column: "boundary", nullable: true, about: "where it failed", values: boundaries },
  message: {
    type: "text",
    column: ofFailure("message"),
    graded: "message",
    nullable: true,
    about: "message of the failure",
  },
  explanation: {
    type: "text",
    column: ofDetails("explanation"),
    graded: "explanation",
    nullable: true,
    about: "the grader's explanation",
  },
  tokens: { type: "number", column: "tokens", about: "sampled tokens of the episode" },
  turns: { type: "number", column: "turns", about: "model calls of the episode" },
  tools: { type: "number", column: "tools", about: "tool calls of the episode" },
  seconds: { type: "number", column: "seconds", about: "duration in seconds" },
  retries: { type: "number", column: "retries", about: "failed attempts before this one" },
  version: { type: "number", column: "version", nullable: true, about: "newest weights that sampled it" },
  text: { type: "text", column: "", about: "words in prompts, replies, thinking, explanation and task, with ~ only" },
};

/** What a person who writes a filter needs. */
export const filterFields = {
  fields: Object.entries(fields).map(([name, { type, about, values }]) => ({ name, type, about, values })),
  examples: [
    'reward<0.2 and role=judge and termination=timeout and text~"sorry"',
    "step>=10 and not (correct=true or reward=unknown)",
    'failed=true and message~"connection"',
  ],
};

// The filter language: `reward<0.2 and role=judge and text~"sorry"`.
//
// expression = all { "or" all }; all = one { "and" one }; one = ["not"] one | "(" expression ")" | field operator value.
// A value is a word or text in double quotes, in which \" and \\ are escapes.

const operators = ["=", "!=", "<", "<=", ">", ">=", "~", "!~"] as const;
type Operator = (typeof operators)[number];

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

// Translates a filter into an SQL condition on the index's table `trajectories`.

export interface Condition {
  sql: string;
  values: (string | number)[];
  /** Whether it compares fields of single trajectories. If not, the first trajectory of each episode is enough. */
  perTrajectory: boolean;
}

/** @throws FilterError for an empty name, an unknown field, or a value that does not fit it */
export function filterCondition(text: string): Condition {
  if (text.trim() === "") return { sql: "1", values: [], perTrajectory: false };
  const values: (string | number)[] = [];
  let perTrajectory = false;

  function toSql(filter: Filter): string {
    if (filter.kind === "not") return `NOT ${toSql(filter.part)}`;
    if (filter.kind !== "comparison") return `(${filter.parts.map(toSql).join(` ${filter.kind.toUpperCase()} `)})`;
    const { field: name, operator, value } = filter;
    const field = ownValue<Field>(fields, name.text.toLowerCase());
    if (field === undefined) {
      const [near] = nearest(name.text, Object.keys(fields), 1);
      const hint = near === undefined ? `the fields are ${Object.keys(fields).join(", ")}` : `did you mean "${near}"?`;
      throw new FilterError(`"${name.text}" is not a field`, name, hint);
    }
    perTrajectory ||= field.perTrajectory === true;
    const problem = (text: string, hint?: string) => new FilterError(text, value, hint);
    const column = `(${field.column})`;
    if (field.column === "") {
      if (operator !== "~" && operator !== "!~")
        throw new FilterError(`"${name.text}" has no operator ${operator}`, name, 'use ~, e.g. text~"sorry"');
      const words = searchPhrase(value.text);
      if (words === undefined) throw problem("a text search needs a letter or a digit");
      values.push(words);
      return `${operator === "~" ? "" : "NOT "}episode IN (SELECT rowid FROM texts WHERE texts MATCH ?)`;
    }
    if (field.nullable && value.kind === "word" && value.text.toLowerCase() === "unknown") {
      if (operator !== "=" && operator !== "!=") throw problem(`"unknown" can only be compared with = and !=`);
      return `${column} IS ${operator === "=" ? "" : "NOT "}NULL`;
    }
    if (operator === "~" || operator === "!~") {
      if (field.type !== "text") throw problem(`${name.text} is not a text, so it cannot be searched with ${operator}`);
      if (field.graded !== undefined && value.text.length >= shortestGraded) {
        values.push(`${field.graded} : ${quoted(value.text)}`);
        const found = "episode IN (SELECT rowid FROM gradings WHERE gradings MATCH ?)";
        return operator === "~" ? found : `(NOT ${found} AND ${column} IS NOT NULL)`;
      }
      values.push(value.text);
      return `(instr(lower(${column}), lower(?)) ${operator === "~" ? "> 0" : "= 0"} IS TRUE)`;
    }
    values.push(operand(field, name.text, value.text, operator, problem));
    const compared = field.type === "number" ? `typeof(${column}) IN ('integer', 'real') AND ${column}` : column;
    return `((${compared} ${operator === "!=" ? "<>" : operator} ?) IS TRUE)`;
  }

  const sql = toSql(parseFilter(text));
  return { sql, values, perTrajectory };
}

function operand(
  { type }: Field,
  name: string,
  text: string,
  operator: Operator,
  problem: (text: string, hint?: string) => FilterError,
): string | number {
  if (type === "text") return text;
  if (type === "boolean") {
    if (operator !== "=" && operator !== "!=") throw problem(`${name} can only be compared with = and !=`);
    const found = ownValue<number>({ true: 1, yes: 1, "1": 1, false: 0, no: 0, "0": 0 }, text.toLowerCase());
    if (found === undefined) throw problem(`"${text}" is not true or false`);
    return found;
  }
  const number = Number(text);
  if (text.trim() === "" || Number.isNaN(number)) throw problem(`"${text}" is not a number, but ${name} is`);
  return number;
}

/** The index of `gradings` finds three characters or more. */
const shortestGraded = 3;

const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`;

/** A phrase for full text search, whose last word may be incomplete; undefined if there is nothing to search. */
function searchPhrase(text: string): string | undefined {
  return /[\p{L}\p{N}]/u.test(text) ? `${quoted(text)}*` : undefined;
}

const termsOf = (text: string) => [...text.matchAll(/"([^"]*)"?|[^\s"]+/g)].map(([word, quoted]) => quoted ?? word);

/** A search for several words, which must all occur; words in double quotes must be adjacent. Undefined if empty. */
export function searchTerms(text: string): string | undefined {
  const terms = termsOf(text).flatMap((term) => searchPhrase(term) ?? []);
  return terms.length === 0 ? undefined : terms.join(" AND ");
}

/** Finds the first word or phrase of a search in a text. */
export function searchWords(text: string): RegExp {
  const letters = "\\p{L}\\p{N}\\p{Co}";
  const phrases = termsOf(text).flatMap((term) => term.match(/[\p{L}\p{N}\p{Co}]+/gu)?.join(`[^${letters}]+`) ?? []);
  return new RegExp(`(?<![${letters}])(?:${phrases.join("|")})`, "iu");
}
