/** What a health rule is, and the small memories that rules keep of earlier steps. */
import type { Config } from "../config/schema.ts";
import { mean } from "../statistics.ts";
import type { Metrics } from "./events.ts";
import { rolesOf, stepSummary } from "./step-summary.ts";

/** A step as rules see it. */
export interface Observation {
  metrics: Metrics;
  /** The mean reward; undefined if the step has none or it is not finite. */
  reward: number | undefined;
  /** Nearly everything is solved, so that low entropy or a lack of signal is a success. */
  solved: boolean;
}

/** Called once a step, in order. Returns a sentence while something is wrong. Keeps bounded state only. */
export type Rule = (step: Observation) => string | undefined;

/** A rule of a new run. */
export type NewRule = (config: Config) => Rule;

export const percent = (share: number) => `${Math.round(share * 100)}%`;

/** Adds a value and returns the last `size` values, oldest first. */
export function lastValues<Value>(size: number): (value: Value) => readonly Value[] {
  const values: Value[] = [];
  return (value) => {
    values.push(value);
    if (values.length > size) values.shift();
    return values;
  };
}

/** The mean of a metric over the last `steps` steps; undefined until there are as many, or if one of them lacks it. */
export function meanOfLast(steps: number): (value: number | undefined) => number | undefined {
  const add = lastValues<number | undefined>(steps);
  return (value) => {
    const known = add(value).filter((one) => one !== undefined);
    return known.length === steps ? mean(known) : undefined;
  };
}

const solvedShare = 0.9;

/**
 * Whether the task is as good as solved: by the graders' verdicts, or by the rewards of the last three steps, of which
 * the highest seen counts as a full one (1 at least).
 */
function watchSolved(): (metrics: Metrics, reward: number | undefined) => boolean {
  const add = lastValues<number>(3);
  let recent: readonly number[] = [];
  let most = 1;
  return (metrics, reward) => {
    for (const { value } of rolesOf(metrics, "reward", "max")) if (Number.isFinite(value)) most = Math.max(most, value);
    if (reward !== undefined) recent = add(reward);
    const verdicts = metrics["batch/solve_all"] ?? 0;
    return verdicts >= solvedShare || (recent.length > 0 && mean(recent) >= solvedShare * most);
  };
}

export function observer(): (metrics: Metrics) => Observation {
  const isSolved = watchSolved();
  return (metrics) => {
    const figure = stepSummary(metrics).reward;
    const reward = figure !== undefined && Number.isFinite(figure) ? figure : undefined;
    return { metrics, reward, solved: isSolved(metrics, reward) };
  };
}
