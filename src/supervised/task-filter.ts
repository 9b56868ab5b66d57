/** Conditions on a task's episodes: `0 < avg < 1 and n >= 4`, in the syntax of the viewer's filters. */
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import { own } from "../own.ts";
import { mean } from "../statistics.ts";
import { type Filter, parseFilter, type Token } from "../view/filter/parse-filter.ts";

/** The known rewards of a task's episodes, and which of them solved it. */
export interface TaskOutcomes {
  rewards: readonly number[];
  solved: readonly boolean[];
}

/** rLLM's names, so that its filters work. */
const fields: Readonly<Record<string, (task: TaskOutcomes) => number>> = {
  avg: ({ rewards }) => mean(rewards),
  best: ({ rewards }) => Math.max(...rewards),
  worst: ({ rewards }) => Math.min(...rewards),
  n: ({ rewards }) => rewards.length,
  n_correct: ({ solved }) => solved.filter(Boolean).length,
  solved: ({ solved }) => Number(solved.includes(true)),
};

/** `pass@4` is the probability that one of four of the task's episodes solved it; NaN with fewer. */
function passAt(count: number, { solved }: TaskOutcomes): number {
  const failed = solved.filter((one) => !one).length;
  if (solved.length < count) return Number.NaN;
  let none = 1;
  for (let index = 0; index < count; index++) none *= Math.max(0, failed - index) / (solved.length - index);
  return 1 - none;
}

const comparisons: Readonly<Record<string, (left: number, right: number) => boolean>> = {
  "=": (left, right) => left === right,
  "!=": (left, right) => left !== right,
  "<": (left, right) => left < right,
  "<=": (left, right) => left <= right,
  ">": (left, right) => left > right,
  ">=": (left, right) => left >= right,
};

const flipped: Readonly<Record<string, string>> = { "<": ">", "<=": ">=", ">": "<", ">=": "<=" };
const numberFirst = /(-?\d+(?:\.\d+)?)\s*(<=?|>=?)\s*([a-z_]+(?:@\d+)?)(?:\s*(<=?|>=?)\s*(-?\d+(?:\.\d+)?))?/g;

/** @throws UserError for a filter that is not valid */
export function taskFilter(text: string): (task: TaskOutcomes) => boolean {
  if (text.trim() === "") return () => true;
  // The parser takes the field first.
  const fieldFirst = text.replaceAll(numberFirst, (_, low, first, field, second, high) =>
    second === undefined
      ? `${field}${flipped[first]}${low}`
      : `(${field}${flipped[first]}${low} and ${field}${second}${high})`,
  );
  return compile(parseFilter(fieldFirst));
}

function compile(filter: Filter): (task: TaskOutcomes) => boolean {
  if (filter.kind === "not") {
    const part = compile(filter.part);
    return (task) => !part(task);
  }
  if (filter.kind !== "comparison") {
    const parts = filter.parts.map(compile);
    return filter.kind === "and"
      ? (task) => parts.every((part) => part(task))
      : (task) => parts.some((part) => part(task));
  }
  const { operator } = filter;
  const value = readValue(filter.value);
  const field = fieldOf(filter.field);
  const compare = comparisons[operator];
  if (compare === undefined)
    throw new UserError(`${filter.field.text} is a number, which "${operator}" does not compare`);
  return (task) => compare(field(task), value);
}

function fieldOf({ text }: Token): (task: TaskOutcomes) => number {
  const known = own(fields, text);
  if (known !== undefined) return known;
  const count = Number(/^pass@(\d+)$/.exec(text)?.[1]);
  if (count >= 1) return (task) => passAt(count, task);
  const names = [...Object.keys(fields), "pass@1"];
  const [near] = nearest(text, names, 1);
  throw new UserError(`"${text}" is not a field of a task`, {
    hint: near === undefined ? `the fields are ${names.join(", ")}` : `did you mean ${near}?`,
  });
}

function readValue({ text }: Token): number {
  if (text === "true" || text === "false") return Number(text === "true");
  const value = Number(text);
  if (text !== "" && Number.isFinite(value)) return value;
  throw new UserError(`"${text}" is not a number`);
}
