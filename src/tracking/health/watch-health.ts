/** Turns the metrics of steps into sentences: what goes wrong, and the key that fixes it. */
import type { Config } from "../../config/schema.ts";
import type { Metrics } from "../events.ts";
import {
  entropyCollapse,
  gradientNotFinite,
  rewardCollapse,
  rewardFlat,
  samplerMismatch,
  updateLost,
} from "./learning.ts";
import {
  brokenConversations,
  failedRollouts,
  noModelCalls,
  noSignal,
  repliesCutOff,
  unknownRewards,
} from "./rollouts.ts";
import { type NewRule, observer } from "./rule.ts";

/** Each of these explains why little is learned. */
const causes: readonly NewRule[] = [
  gradientNotFinite,
  failedRollouts,
  noModelCalls,
  unknownRewards,
  brokenConversations,
  repliesCutOff,
  noSignal,
  samplerMismatch,
  updateLost,
  entropyCollapse,
  rewardCollapse,
];

/** Reported only while no cause is found, because their advice would be wrong then. */
const symptoms: readonly NewRule[] = [rewardFlat];

/**
 * The returned function takes the metrics of each step, in order, and returns the sentences that have just become true: a
 * rule that stays true is not repeated until it has cleared. A resumed run passes its earlier steps first. The memory of
 * all rules together has a constant size.
 *
 * @example
 * const health = watchHealth(config);
 * for (const text of health(metrics)) emit({ type: "health", text });
 */
export function watchHealth(config: Config): (metrics: Metrics) => string[] {
  const observe = observer();
  const open = (rules: readonly NewRule[]) => rules.map((rule) => ({ rule: rule(config), wasTrue: false }));
  const watched = { causes: open(causes), symptoms: open(symptoms) };
  return (metrics) => {
    const step = observe(metrics);
    const texts: string[] = [];
    const apply = (entry: (typeof watched.causes)[number], isExplained: boolean) => {
      const found = entry.rule(step);
      const text = isExplained ? undefined : found;
      if (text !== undefined && !entry.wasTrue) texts.push(text);
      entry.wasTrue = text !== undefined;
    };
    for (const entry of watched.causes) apply(entry, false);
    const isExplained = watched.causes.some(({ wasTrue }) => wasTrue);
    for (const entry of watched.symptoms) apply(entry, isExplained);
    return texts;
  };
}
