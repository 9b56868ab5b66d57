/** Every estimator and every loss as settings of a short run in which it acts, and a table of the results. */
import { estimators } from "../algorithms/estimators.ts";
import { type PolicyLossName, policyLosses } from "../algorithms/policy-losses.ts";
import { mean } from "../base/values.ts";
import type { RunSummary } from "./train.ts";

export type NamedRun = readonly [name: string, overrides: readonly string[]];

export const algorithm = (...pairs: string[]) => pairs.map((pair) => `rllm.algorithm.${pair}`);

/** Constants under which a loss does more than PPO's in a batch as small as a test's. */
const acting: Partial<Record<PolicyLossName, string[]>> = {
  clip_cov: ["policy_loss.clip_cov_lb=0", "policy_loss.clip_cov_ratio=0.05"],
  kl_cov: ["policy_loss.kl_cov_ratio=0.05"],
};

export const estimatorRuns: readonly NamedRun[] = Object.keys(estimators).map((name) => [
  name,
  algorithm(`adv_estimator=${name}`),
]);

export const lossRuns: readonly NamedRun[] = (Object.keys(policyLosses) as PolicyLossName[]).map((name) => [
  name,
  algorithm(`loss_fn=${name}`, ...(acting[name] ?? [])),
]);

/** Rewards of each run's first and last two steps, for people to read. */
export function rewardTable() {
  const lines: string[] = [];
  return {
    /** By how much the reward rose. */
    add(label: string, { history }: RunSummary): number {
      const rewards = history.map(({ metrics }) => metrics["reward/mean"]!);
      const [first, last] = [mean(rewards.slice(0, 2)), mean(rewards.slice(-2))];
      lines.push(`  ${label.padEnd(46)} ${first.toFixed(3)} -> ${last.toFixed(3)}`);
      return last - first;
    },
    print: () => void process.stdout.write(`\n${["reward of the first and the last steps", ...lines].join("\n")}\n`),
  };
}
