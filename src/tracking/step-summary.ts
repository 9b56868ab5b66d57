/** The few values of a step that people watch. The only place that knows which metrics hold them. */
import { mean } from "../statistics.ts";
import type { Metrics } from "./events.ts";

/** Every `{prefix}/{role}/{suffix}` with its role. */
export function rolesOf(metrics: Metrics, prefix: string, suffix: string): { role: string; value: number }[] {
  return Object.entries(metrics).flatMap(([name, value]) => {
    const matches = name.startsWith(`${prefix}/`) && name.endsWith(`/${suffix}`);
    const role = name.slice(prefix.length + 1, -suffix.length - 1);
    return matches && role !== "" && !role.includes("/") ? [{ role, value }] : [];
  });
}

/** Combines the metric's values over the roles that have it; undefined if none has. */
function overRoles(metrics: Metrics, prefix: string, suffix: string, combine: (values: number[]) => number) {
  const values = rolesOf(metrics, prefix, suffix).map(({ value }) => value);
  return values.length === 0 ? undefined : combine(values);
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

export function stepSummary(metrics: Metrics) {
  const { "batch/solve_all": all, "batch/solve_partial": partial, "batch/num_tasks": tasks } = metrics;
  const isKnown = all !== undefined && partial !== undefined && tasks !== undefined;
  return {
    reward: metrics["reward/mean"] ?? overRoles(metrics, "reward", "mean", mean),
    /** Tasks that at least one rollout solved. The metrics are shares of the tasks. */
    solved: isKnown ? Math.round((all + partial) * tasks) : undefined,
    tasks,
    /** Groups whose rewards differ: only those teach something. */
    informative: overRoles(metrics, "batch", "informative", sum),
    groups: overRoles(metrics, "batch", "total", sum),
    loss: metrics["actor/pg_loss"] ?? metrics["actor/loss"],
    kl: metrics["actor/kl_loss"] ?? metrics["actor/ppo_kl"],
    gradNorm: metrics["actor/grad_norm"],
    learningRate: metrics["actor/lr"],
    /** Nats per token. */
    entropy: metrics["actor/entropy"] ?? metrics["actor/entropy_loss"],
    /** Seconds. Asynchronous training samples all the time, so only the wait for rollouts counts. */
    sampling: metrics["time/rollout"] ?? metrics["time/buffer_wait"],
    training: metrics["time/update"],
    validation: metrics["time/validation"],
    saving: metrics["time/save"],
    tokensPerSecond: metrics["perf/throughput"],
  };
}
