/** GRPO for pass@k: only the best of a group is pushed, by its lead over the second (arXiv 2503.19595). */
import { standardDeviation } from "../../statistics.ts";
import type { AdvantageEstimator } from "./estimator.ts";

/** The first of equally good ones counts as the best, and has no lead; so has a group of one. */
export const passAtK: AdvantageEstimator = (groups, { std, ddof, eps }) =>
  groups.map(({ rewards }) => {
    if (rewards.length < 2) return rewards.map(() => 0);
    const best = rewards.reduce((leader, reward, index) => (reward > rewards[leader]! ? index : leader), 0);
    const second = rewards.reduce((most, reward, index) => (index === best ? most : Math.max(most, reward)), -Infinity);
    const lead = (rewards[best]! - second) / (std ? standardDeviation(rewards, ddof) + eps : 1);
    return rewards.map((_, index) => (index === best ? lead : 0));
  });
