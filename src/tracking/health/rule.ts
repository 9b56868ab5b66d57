/** Health rules, and what they remember of earlier steps. */
import type { Config } from "../../config/schema.ts";
import { mean } from "../../statistics.ts";
import type { Metrics } from "../events.ts";
import { rolesOf, stepSummary } from "../step-summary.ts";

interface Observation {
  metrics: Metrics;
  /** The mean reward; undefined if the step has none or it is not finite. */
  reward: number | undefined;
  /** Nearly everything is solved, so low entropy or a lack of signal is a success. */
  solved: boolean;
}

/** Called once per step, in order. Returns a sentence while something is wrong. */
type Rule = (step: Observation) => string | undefined;

/** Makes the rule for one run. */
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

/** The mean of a metric over the last `steps` steps; undefined if one of them lacks it or there are fewer steps. */
export function meanOfLast(steps: number): (value: number | undefined) => number | undefined {
  const add = lastValues<number | undefined>(steps);
  return (value) => {
    const known = add(value).filter((one) => one !== undefined);
    return known.length === steps ? mean(known) : undefined;
  };
}

const solvedShare = 0.9;

/** A task counts as solved by the graders' verdicts, or if the last three rewards are close to the highest seen (1 or more). */
export function observer(): (metrics: Metrics) => Observation {
  const add = lastValues<number>(3);
  let recent: readonly number[] = [];
  let highest = 1;
  return (metrics) => {
    const value = stepSummary(metrics).reward;
    const reward = Number.isFinite(value) ? value : undefined;
    if (reward !== undefined) recent = add(reward);
    for (const { value } of rolesOf(metrics, "reward", "max")) {
      if (Number.isFinite(value)) highest = Math.max(highest, value);
    }
    const byVerdict = (metrics["batch/solve_all"] ?? 0) >= solvedShare;
    const byReward = recent.length > 0 && mean(recent) >= solvedShare * highest;
    return { metrics, reward, solved: byVerdict || byReward };
  };
}
