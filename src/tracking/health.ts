/** Turns the metrics of steps into sentences: what is going wrong, and the key that fixes it. */
import type { Config } from "../config/schema.ts";
import type { Metrics } from "./events.ts";
import { entropyCollapse, gradientNotFinite, rewardCollapse, rewardFlat, samplerMismatch } from "./health-learning.ts";
import { brokenConversations, failedRollouts, noSignal, repliesCutOff, unknownRewards } from "./health-rollouts.ts";
import { type NewRule, observer, type Rule } from "./health-rule.ts";

/** Each of these explains why little is learned. */
const causes: readonly NewRule[] = [
  gradientNotFinite,
  failedRollouts,
  unknownRewards,
  brokenConversations,
  repliesCutOff,
  noSignal,
  samplerMismatch,
  entropyCollapse,
  rewardCollapse,
];

/** Said only while none of the causes is: its advice would be wrong then. */
const symptoms: readonly NewRule[] = [rewardFlat];

/**
 * Watches a run. The returned function takes the metrics of each step, in order, and returns the sentences that have
 * become true with it: a rule that stays true is silent, and speaks again after it has cleared. A resumed run passes
 * its earlier steps through first; the memory of all rules together is of constant size.
 *
 * @example
 * const health = watchHealth(config);
 * for (const text of health(metrics)) emit({ type: "health", text });
 */
export function watchHealth(config: Config): (metrics: Metrics) => string[] {
  const observe = observer();
  const open = (rules: readonly NewRule[]) => rules.map((rule) => edge(rule(config)));
  const [first, second] = [open(causes), open(symptoms)];
  return (metrics) => {
    const step = observe(metrics);
    const found = first.map((rule) => rule(step));
    const explained = found.some(({ holds }) => holds);
    const rest = second.map((rule) => rule(step, explained));
    return [...found, ...rest].flatMap(({ text }) => text ?? []);
  };
}

/** The rule's sentence when it becomes true, and whether it is. */
function edge(rule: Rule): (step: Parameters<Rule>[0], muted?: boolean) => { holds: boolean; text?: string } {
  let held = false;
  return (step, muted = false) => {
    const text = rule(step);
    const begins = text !== undefined && !muted && !held;
    held = text !== undefined && !muted;
    return begins ? { holds: held, text } : { holds: held };
  };
}
