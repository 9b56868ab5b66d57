/** Expands a multirun's overrides to the overrides of each run: all combinations, the last sweep varies fastest. */

import { mistakesError } from "../secrets.ts";
import { type Mistake, oneLine } from "../tree.ts";
import { pythonFloat } from "../yaml.ts";
import {
  elementText,
  isFloatElement,
  isMistake,
  isSweep,
  type Override,
  parseOverride,
  type Sweep,
  ValueMistake,
} from "./overrides.ts";

export interface SweepOptions {
  /** The options of a config group, for `glob(...)`. */
  groupOptions?: (group: string) => string[];
  /** A draw from [0, 1), for `shuffle(...)`. */
  random?: () => number;
}

const maxRuns = 10_000;

/**
 * @example expandSweep(["a=1,2", "b=x"]); // [["a=1", "b=x"], ["a=2", "b=x"]]
 * @throws UserError listing every invalid override
 */
export function expandSweep(texts: readonly string[], options: SweepOptions = {}): string[][] {
  const mistakes: Mistake[] = [];
  // If a key is set twice, the last override wins.
  const choices = new Map<string, string[]>();
  for (const text of texts) {
    const parsed = parseOverride(text);
    if (isMistake(parsed)) {
      mistakes.push(parsed);
      continue;
    }
    const target = targetOf(parsed);
    try {
      const { value } = parsed;
      const values = isSweep(value) ? sweepTexts(value, parsed, options) : undefined;
      choices.set(target, values?.map((spelled) => `${target}=${spelled}`) ?? [text]);
    } catch (error) {
      if (!(error instanceof ValueMistake)) throw error;
      mistakes.push({ where: oneLine(text), message: error.message });
    }
  }
  const runs = [...choices.values()].reduce((product, values) => product * values.length, 1);
  if (runs > maxRuns) mistakes.push({ where: "multirun", message: `${runs} runs; the limit is ${maxRuns}` });
  if (mistakes.length > 0) throw mistakesError(mistakes);
  return [...choices.values()].reduce<string[][]>(
    (sets, values) => sets.flatMap((set) => values.map((value) => [...set, value])),
    [[]],
  );
}

/** The part before `=`; a later override with the same part replaces an earlier one. */
function targetOf({ kind, key, package: place }: Override): string {
  const mark = { change: "", add: "+", "force-add": "++", delete: "~" }[kind];
  return `${mark}${key}${place === undefined ? "" : `@${place}`}`;
}

function sweepTexts(sweep: Sweep, { key }: Override, options: SweepOptions): string[] {
  switch (sweep.type) {
    case "choice":
      return shuffled(sweep.items.map(elementText), sweep.shuffle, options);
    case "range":
      return shuffled(rangeTexts(sweep), sweep.shuffle, options);
    case "glob": {
      const names = options.groupOptions?.(key) ?? [];
      const matches = (patterns: string[], name: string) => patterns.some((pattern) => globPattern(pattern).test(name));
      const chosen = names.filter((name) => matches(sweep.include, name) && !matches(sweep.exclude, name));
      if (chosen.length > 0) return chosen;
      const found = names.length === 0 ? `${key} is not a config group` : `its options are ${names.join(", ")}`;
      throw new ValueMistake(`glob() matches no option; ${found}`);
    }
    case "interval":
      throw new ValueMistake("interval() has infinitely many values; use range(start,stop,step) or choice(a,b)");
  }
}

function rangeTexts({ start, stop, step }: Sweep & { type: "range" }): string[] {
  const bounds = [start, stop, step];
  const numbers = bounds.map(({ value }) => value);
  if (!numbers.every(Number.isFinite)) throw new ValueMistake("range() takes finite numbers");
  const [from, to, by] = numbers as [number, number, number];
  if (by === 0) throw new ValueMistake("range() cannot take steps of 0");
  const count = Math.ceil((to - from) / by);
  if (count > maxRuns) throw new ValueMistake(`range() has ${count} values; the limit is ${maxRuns}`);
  if (!bounds.some(isFloatElement)) {
    return Array.from({ length: Math.max(0, count) }, (_, index) => String(from + index * by));
  }
  // Decimal steps are added as decimals: ten times 0.1 is 1, not 0.9999999999999999.
  const texts: string[] = [];
  const digits = Math.max(...numbers.map(decimals));
  if (digits > 15) throw new ValueMistake("range() takes numbers of at most 15 decimals");
  const scale = 10n ** BigInt(digits);
  const whole = (value: number) => BigInt(value.toFixed(digits).replace(".", ""));
  const [first, last, stride] = [whole(from), whole(to), whole(by)];
  for (let at = first; stride > 0n ? at < last : at > last; at += stride) {
    texts.push(pythonFloat(Number(at) / Number(scale)));
  }
  return texts;
}

/** The number of decimals in the shortest spelling of a number. */
function decimals(value: number): number {
  const [mantissa, exponent] = value.toExponential().split("e") as [string, string];
  return Math.max(0, mantissa.replace(/^-?\d\.?/, "").length - Number(exponent));
}

function globPattern(pattern: string): RegExp {
  const source = pattern
    .replace(/[.+^${}()|\\]/g, "\\$&")
    .replaceAll("*", ".*")
    .replaceAll("?", ".");
  return new RegExp(`^${source.replace(/[[\]]/g, "\\$&")}$`, "s");
}

function shuffled(values: string[], shuffle: boolean, { random = Math.random }: SweepOptions): string[] {
  if (!shuffle) return values;
  const order = [...values];
  for (let last = order.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    [order[last], order[other]] = [order[other]!, order[last]!];
  }
  return order;
}
