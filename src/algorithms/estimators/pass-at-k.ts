/** GRPO for pass@k (arXiv 2503.19595). */
import { standardDeviation } from "../../statistics.ts";
import type { AdvantageEstimator } from "./estimator.ts";

/** The best of a group gets its lead over the second; the others, and a group of one, get 0. Ties have no lead. */
export const passAtK: AdvantageEstimator = (groups, { std, ddof, eps }) =>
  groups.map(({ rewards }) => {
    const [best, second] = rewards.toSorted((a, b) => b - a);
    if (best === undefined || second === undefined) return rewards.map(() => 0);
    const lead = (best - second) / (std ? standardDeviation(rewards, ddof) + eps : 1);
    const leader = rewards.indexOf(best);
    return rewards.map((_, index) => (index === leader ? lead : 0));
  });
