/** Which metrics the charts of a run show. */
import type { Curves } from "../../src/apps/view/queries/curves.ts";
import { toNumber } from "../parts/numbers.ts";
import type { ChartProps, Curve } from "../parts/plot.ts";
import { cumulative } from "../parts/series.ts";
import { type AxisName, axisNames } from "../state/chart-settings.ts";

interface ChartPlan {
  title: string;
  unit?: string;
  /** Labels by the name of a metric; `*` stands for a role. */
  metrics: Readonly<Record<string, string>>;
}

const plans: readonly ChartPlan[] = [
  { title: "Reward", metrics: { "reward/mean": "mean", "reward/*/mean": "*" } },
  {
    title: "Solved",
    unit: "share of tasks",
    metrics: { "batch/solve_all": "all", "batch/solve_partial": "some", "batch/solve_none": "none" },
  },
  {
    title: "Signal",
    unit: "share of groups",
    metrics: {
      "batch/*/fractions/effective": "* informative",
      "batch/*/fractions/too_easy": "* too easy",
      "batch/*/fractions/too_hard": "* too hard",
    },
  },
  {
    title: "Reply length",
    unit: "tokens",
    metrics: { "response_length/mean": "mean", "response_length/max": "longest" },
  },
  { title: "Entropy", unit: "nats per token", metrics: { "actor/entropy": "policy" } },
  {
    title: "KL",
    unit: "nats per token",
    metrics: {
      "actor/kl_loss": "to the reference",
      "actor/reward_kl_penalty": "penalty",
      "actor/ppo_kl": "old to new policy",
      "rollout/kl_sampler_trainer_k3": "sampler to trainer",
    },
  },
  {
    title: "Teacher",
    unit: "nats per token",
    metrics: { "distillation/teacher_kl": "KL to the teacher", "distillation/teacher_kl/*": "*" },
  },
  {
    title: "Ratio",
    unit: "share of tokens",
    metrics: {
      "actor/pg_clipfrac": "clipped",
      "actor/pg_clipfrac_lower": "clipped below",
      "rollout/effective_sample_size": "effective sample size",
    },
  },
  { title: "Gradient norm", metrics: { "actor/grad_norm": "policy", "critic/grad_norm": "critic" } },
  { title: "Throughput", unit: "sampled tokens per second", metrics: { "perf/throughput": "tokens/s" } },
  { title: "Staleness", unit: "versions", metrics: { "async/staleness_mean": "mean", "async/staleness_max": "max" } },
  { title: "Critic", metrics: { "critic/vf_loss": "loss", "critic/vf_explained_var": "explained variance" } },
  { title: "Cut off", unit: "share of replies", metrics: { "response_length/clip_ratio": "by a limit" } },
  { title: "Failures", unit: "episodes", metrics: { "batch/failed_episodes": "failed", "batch/retries": "retries" } },
];

export interface PlannedChart {
  title: string;
  unit?: string;
  curves: Curve[];
}

/** The charts for which a run has values. With one role, its curve is left out where it repeats that of all roles. */
export function plannedCharts({ names, columns }: Curves): PlannedChart[] {
  return plans.flatMap(({ metrics, ...plan }) => {
    const curves = Object.entries(metrics).flatMap(([pattern, label]) => {
      const found = matching(pattern, names);
      const repeats = found.length === 1 && found[0]?.role !== "" && names.includes(pattern.replace("*/", ""));
      return (repeats ? [] : found).map(({ name, role }) => ({
        label: label.replace("*", role).trim(),
        values: (columns[name] ?? []).map(toNumber),
      }));
    });
    const known = curves.filter(({ values }) => values.some((value) => value !== null));
    return known.length === 0 ? [] : [{ ...plan, curves: known }];
  });
}

/** What an axis adds up over the steps. */
const summed: Readonly<Record<Exclude<AxisName, "step">, string>> = {
  tokens: "perf/sampled_tokens",
  time: "time/step",
};

/** The axes for which a run has values. */
export const knownAxes = ({ names }: Curves): AxisName[] =>
  axisNames.filter((name) => name === "step" || names.includes(summed[name]));

export type Places = NonNullable<ChartProps["x"]>;

/** The places of the steps on an axis; undefined if that is their number, or if the run did not record it. */
export function placesOn(axis: AxisName, curves: Curves): Places | undefined {
  if (axis === "step" || !knownAxes(curves).includes(axis)) return undefined;
  return { name: axis, at: cumulative((curves.columns[summed[axis]] ?? []).map(toNumber)) };
}

function matching(pattern: string, names: readonly string[]): { name: string; role: string }[] {
  const [before = "", after] = pattern.split("*");
  if (after === undefined) return names.includes(pattern) ? [{ name: pattern, role: "" }] : [];
  return names
    .filter((name) => name.startsWith(before) && name.endsWith(after) && name.length > before.length + after.length)
    .map((name) => ({ name, role: name.slice(before.length, name.length - after.length) }))
    .filter(({ role }) => !role.includes("/"));
}
