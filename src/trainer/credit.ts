/** Credit of a step: rewards become advantages, and what is known of rewards and advantages becomes metrics. */
import {
  clipSymmetric,
  estimateAdvantages,
  estimateStepAdvantages,
  noMoments,
  normalizeRewards,
  type OverlongPenalty,
  overlongPenalty,
  type RunningMoments,
  runningDeviation,
  shareAmongSteps,
  type TokenAdvantageOptions,
} from "../algorithms/advantages.ts";
import { UserError } from "../base/errors.ts";
import { mean, percentile, spread, standardDeviation } from "../base/values.ts";
import type { MemberAdvantage, StepAdvantage } from "../trajectories/batch.ts";
import type { Trajectory, TrajectoryGroup } from "../trajectories/types.ts";

// Advantages: how much each trajectory, or each of its steps, counts.

export interface CreditOptions {
  advantages: TokenAdvantageOptions;
  /**
   * Where advantages come from: the workflow, or an estimator over steps or over whole trajectories. `none`: they are 0,
   * because the policy learns only from a teacher.
   */
  source: "workflow" | "steps" | "trajectories" | "none";
  /** Discount of the steps' rewards. */
  stepGamma: number;
  /** Divide a trajectory's advantage among its steps. */
  shareAmongSteps: boolean;
  /** Undefined: no penalty. */
  overlong: OverlongPenalty | undefined;
  /** Undefined: rewards stay as they are. */
  runningNorm: { center: boolean } | undefined;
  /** 0: no bound. */
  clip: number;
  dropUniformGroups: boolean;
}

export interface Credit {
  /** The groups to train on. */
  groups: readonly TrajectoryGroup[];
  /** `[groups][members]` */
  advantages: readonly (readonly MemberAdvantage[])[];
  /** The moments of all rewards including these, if rewards are normalized by them. */
  moments: RunningMoments | undefined;
  /** `advantage/{role}/*`, `reward/*` and what was dropped. */
  metrics: Record<string, number>;
}

/**
 * In this order, each if enabled: the overlong penalty, the estimator, the running normalization and the bound of its
 * advantages (`rllm.reward`), and the filter of groups without any advantage.
 *
 * @param moments of all rewards before these
 */
export function assignCredit(
  groups: readonly TrajectoryGroup[],
  options: CreditOptions,
  moments: RunningMoments | undefined,
): Credit {
  const penalized = penalizeOverlong(groups, options);
  const estimated = estimate(penalized.groups, options, moments);
  const kept = options.dropUniformGroups
    ? dropUniformGroups(groups, estimated.advantages)
    : { groups, advantages: estimated.advantages, counts: {} };
  const metrics = {
    ...penalized.metrics,
    ...estimated.metrics,
    ...kept.counts,
    ...advantageMetrics(kept.groups, meanAdvantages(kept.advantages)),
  };
  return { groups: kept.groups, advantages: kept.advantages, moments: estimated.moments, metrics };
}

function estimate(
  groups: readonly TrajectoryGroup[],
  options: CreditOptions,
  moments: RunningMoments | undefined,
): Omit<Credit, "groups"> {
  if (options.source === "none")
    return { advantages: groups.map(({ members }) => members.map(() => 0)), moments, metrics: {} };
  if (options.source === "workflow") return { advantages: workflowAdvantages(groups), moments, metrics: {} };
  if (options.source === "steps") {
    const { advantages, counts } = estimateStepAdvantages(groups, options.advantages, options.stepGamma);
    return { advantages, moments, metrics: counts };
  }
  const normalized = normalize(estimateAdvantages(groups, options.advantages), options, moments);
  if (!options.shareAmongSteps) return normalized;
  return { ...normalized, advantages: shareAmongSteps(groups, normalized.advantages) };
}

/** A step without an advantage is not trained on, and counted. */
function workflowAdvantages(groups: readonly TrajectoryGroup[]): Credit["advantages"] {
  const steps = groups.flatMap(({ members }) => members.flatMap(({ trajectory }) => trajectory.steps));
  if (groups.length > 0 && steps.every(({ advantage }) => advantage === undefined)) {
    throw new UserError(
      "rllm.algorithm.use_precomputed_advantage is set, but no rollout of this step returned advantages",
      { hint: "return `advantages` from the workflow, e.g. { reward: 1, advantages: { agent: [0.5] } }" },
    );
  }
  return groups.map(({ members }) =>
    members.map(({ trajectory }) => trajectory.steps.map(({ advantage = Number.NaN }): StepAdvantage => advantage)),
  );
}

function penalizeOverlong(
  groups: readonly TrajectoryGroup[],
  { overlong }: CreditOptions,
): Pick<Credit, "groups" | "metrics"> {
  if (!overlong) return { groups, metrics: {} };
  const longest = ({ steps }: Trajectory) => Math.max(0, ...steps.map(({ tokens }) => tokens.length));
  const all: number[] = [];
  const penalized = groups.map((group) => ({
    ...group,
    members: group.members.map((member) => {
      const penalty = overlongPenalty(longest(member.trajectory), overlong);
      all.push(penalty);
      return { ...member, reward: member.reward + penalty };
    }),
  }));
  return { groups: penalized, metrics: all.length === 0 ? {} : { "reward/overlong_penalty": mean(all) } };
}

/** LightRFT's order: the estimator's results are normalized and bounded. */
function normalize(
  advantages: number[][],
  { runningNorm, clip }: CreditOptions,
  moments: RunningMoments | undefined,
): { advantages: number[][]; moments: RunningMoments | undefined; metrics: Record<string, number> } {
  const metrics: Record<string, number> = {};
  let flat = advantages.flat();
  let known = moments;
  if (runningNorm) {
    const normalized = normalizeRewards(known ?? noMoments, flat, runningNorm);
    flat = normalized.rewards;
    known = normalized.moments;
    metrics["reward/running_mean"] = known.mean;
    metrics["reward/running_std"] = runningDeviation(known);
  }
  if (clip > 0) {
    const { values, fraction } = clipSymmetric(flat, clip);
    flat = values;
    metrics["reward/clip_fraction"] = fraction;
  }
  let position = 0;
  const normalized = advantages.map(({ length }) => {
    position += length;
    return flat.slice(position - length, position);
  });
  return { advantages: normalized, moments: known, metrics };
}

/** Drops groups whose advantages are all 0. */
export function dropUniformGroups(groups: readonly TrajectoryGroup[], advantages: Credit["advantages"]) {
  const kept = groups.filter((_, index) => !advantages[index]?.every(isZero));
  return {
    groups: kept,
    advantages: advantages.filter((own) => !own.every(isZero)),
    counts: { "groups/dropped_zero_adv": groups.length - kept.length },
  };
}

/** Smaller advantages and deviations count as zero, as in rLLM. */
const negligible = 1e-8;

const listOf = (advantage: Exclude<MemberAdvantage, number> | ArrayLike<number>): StepAdvantage[] =>
  Array.from<StepAdvantage>(advantage as ArrayLike<StepAdvantage>);

function isZero(advantage: MemberAdvantage | StepAdvantage): boolean {
  return typeof advantage === "number" ? Math.abs(advantage) <= negligible : listOf(advantage).every(isZero);
}

/** One value per trajectory: its advantage, or the mean of its steps' advantages. */
function meanAdvantages(advantages: Credit["advantages"]): number[][] {
  const value = (advantage: MemberAdvantage | StepAdvantage): number =>
    typeof advantage === "number" ? advantage : mean(listOf(advantage).map(value));
  return advantages.map((own) => own.map(value));
}

/** `reward/{role}/*` over trajectories; `batch/{role}/*` over the groups of two or more. */
export function rewardMetrics(groups: readonly TrajectoryGroup[]): Record<string, number> {
  const rewards = groups.map(({ members }) => members.map(({ reward }) => reward));
  return byRole(groups, rewards, (role, own) => ({
    ...describe(`reward/${role}`, own.flat()),
    ...signalMetrics(
      `batch/${role}`,
      own.filter(({ length }) => length >= 2),
    ),
  }));
}

/** The shares of groups with a signal, and of those without: all rollouts solved the task, or none did. */
function signalMetrics(name: string, groups: readonly (readonly number[])[]): Record<string, number> {
  if (groups.length === 0) return {};
  const means = groups.map(mean);
  const deviations = groups.map((rewards) => standardDeviation(rewards));
  const uniform = means.filter((_, index) => Number(deviations[index]) < negligible);
  const percentiles = [10, 50, 90].flatMap((rank) => [
    [`${name}/group_reward_mean/p${rank}`, percentile(means, rank)],
    [`${name}/group_reward_std/p${rank}`, percentile(deviations, rank)],
  ]);
  return {
    [`${name}/total`]: groups.length,
    [`${name}/informative`]: groups.length - uniform.length,
    [`${name}/fractions/effective`]: 1 - uniform.length / groups.length,
    [`${name}/fractions/too_easy`]: uniform.filter((reward) => reward >= 1).length / groups.length,
    [`${name}/fractions/too_hard`]: uniform.filter((reward) => reward <= 0).length / groups.length,
    ...Object.fromEntries(percentiles),
  };
}

/**
 * `advantage/{role}/*` over trajectories.
 *
 * @param advantages `[groups][members]`
 */
export function advantageMetrics(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): Record<string, number> {
  return byRole(groups, advantages, (role, own) => {
    const flat = own.flat().filter(Number.isFinite);
    if (flat.length === 0) return {};
    const zero = flat.filter((value) => Math.abs(value) < negligible).length;
    return { ...describe(`advantage/${role}`, flat), [`advantage/${role}/fraction_zero`]: zero / flat.length };
  });
}

function byRole(
  groups: readonly TrajectoryGroup[],
  values: readonly (readonly number[])[],
  metrics: (role: string, own: readonly (readonly number[])[]) => Record<string, number>,
): Record<string, number> {
  const roles = [...new Set(groups.map(({ role }) => role))];
  const valuesOf = (role: string) => values.filter((_, index) => groups[index]?.role === role);
  return Object.assign({}, ...roles.map((role) => metrics(role, valuesOf(role))));
}

function describe(name: string, values: readonly number[]): Record<string, number> {
  return { ...spread(name, values), [`${name}/std`]: standardDeviation(values) };
}
