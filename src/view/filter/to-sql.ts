/** Translates a filter into an SQL condition on the index's table `trajectories`. */
import { nearest } from "../../nearest.ts";
import { own } from "../../own.ts";
import { type Field, fields } from "./fields.ts";
import { type Filter, FilterError, type Operator, parseFilter } from "./parse-filter.ts";

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
    const field = own<Field>(fields, name.text.toLowerCase());
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
    const found = own<number>({ true: 1, yes: 1, "1": 1, false: 0, no: 0, "0": 0 }, text.toLowerCase());
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
