/** The few figures of a step that people watch, found among its metrics. The one place that knows which names hold them. */
import type { Metrics } from "./events.ts";

/** The metric's mean over the roles that have it, e.g. `overRoles(metrics, "reward", "mean")` of `reward/{role}/mean`. */
function overRoles(metrics: Metrics, prefix: string, suffix: string): number | undefined {
  const values = rolesOf(metrics, prefix, suffix).map(({ value }) => value);
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Every `{prefix}/{role}/{suffix}` with its role. */
export function rolesOf(metrics: Metrics, prefix: string, suffix: string): { role: string; value: number }[] {
  return Object.entries(metrics).flatMap(([name, value]) => {
    const matches = name.startsWith(`${prefix}/`) && name.endsWith(`/${suffix}`);
    const role = name.slice(prefix.length + 1, -suffix.length - 1);
    return matches && role !== "" && !role.includes("/") ? [{ role, value }] : [];
  });
}

const sumOverRoles = (metrics: Metrics, prefix: string, suffix: string) => {
  const roles = rolesOf(metrics, prefix, suffix);
  return roles.length === 0 ? undefined : roles.reduce((sum, { value }) => sum + value, 0);
};

export interface StepFigures {
  reward: number | undefined;
  /** Tasks solved by at least one of their rollouts. */
  solved: number | undefined;
  tasks: number | undefined;
  /** Groups whose rewards differ: only those teach something. */
  informative: number | undefined;
  groups: number | undefined;
  loss: number | undefined;
  kl: number | undefined;
  gradNorm: number | undefined;
  learningRate: number | undefined;
  /** Nats a token. */
  entropy: number | undefined;
  /** Seconds. */
  sampling: number | undefined;
  training: number | undefined;
  validation: number | undefined;
  saving: number | undefined;
  tokensPerSecond: number | undefined;
}

export function stepFigures(metrics: Metrics): StepFigures {
  const { "batch/solve_all": all, "batch/solve_partial": partial } = metrics;
  const tasks = metrics["batch/num_tasks"];
  return {
    reward: metrics["reward/mean"] ?? overRoles(metrics, "reward", "mean"),
    // The metrics are shares of the tasks.
    solved: [all, partial, tasks].includes(undefined) ? undefined : Math.round((all! + partial!) * tasks!),
    tasks,
    informative: sumOverRoles(metrics, "batch", "informative"),
    groups: sumOverRoles(metrics, "batch", "total"),
    loss: metrics["actor/pg_loss"] ?? metrics["actor/loss"],
    kl: metrics["actor/kl_loss"] ?? metrics["actor/ppo_kl"],
    gradNorm: metrics["actor/grad_norm"],
    learningRate: metrics["actor/lr"],
    entropy: metrics["actor/entropy"] ?? metrics["actor/entropy_loss"],
    // Asynchronous training samples all the time: what counts is how long it is waited for.
    sampling: metrics["time/rollout"] ?? metrics["time/buffer_wait"],
    training: metrics["time/update"],
    validation: metrics["time/validation"],
    saving: metrics["time/save"],
    tokensPerSecond: metrics["perf/throughput"],
  };
}
