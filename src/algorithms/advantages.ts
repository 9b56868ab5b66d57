/** From groups of rewards to one figure a trajectory, by estimator. */
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import type { Trajectory, TrajectoryGroup } from "../trajectories/types.ts";
import type { AdvantageEstimator, EstimatorOptions, RewardGroup } from "./estimators/estimator.ts";
import { type EstimatorSpec, estimators } from "./estimators/index.ts";

export interface AdvantageOptions extends EstimatorOptions {
  /** A name of `estimators` or of `custom`. */
  estimator: string;
  /** Estimators of single roles, where they differ. */
  byRole?: Readonly<Record<string, string>>;
  /** Estimators of the experiment's own, by name; one that has a built-in's name takes its place. */
  custom?: Readonly<Record<string, AdvantageEstimator>>;
}

/** @throws UserError when nothing has that name */
export function estimatorNamed(name: string, custom: AdvantageOptions["custom"] = {}): EstimatorSpec {
  if (Object.hasOwn(custom, name)) return { compare: custom[name]! };
  if (Object.hasOwn(estimators, name)) return estimators[name as keyof typeof estimators];
  const names = [...Object.keys(estimators), ...Object.keys(custom)];
  throw new UserError(`no advantage estimator is called ${name}`, {
    hint: `${[...new Set([...nearest(name, names, 1), ...names])].join(", ")}, or one in the experiment's \`estimators\``,
  });
}

/**
 * Estimators and losses of single roles, from a map of the first with or without the second.
 *
 * @example
 * splitEstimatorMap({ solver: "rloo", judge: ["prpo", "cispo"] });
 * // { byRole: { solver: "rloo", judge: "prpo" }, lossByRole: { judge: "cispo" } }
 */
export function splitEstimatorMap(map: Readonly<Record<string, string | readonly [string, string]>>): {
  byRole: Record<string, string>;
  lossByRole: Record<string, string>;
} {
  const entries = Object.entries(map).map(([role, value]) => [role, ...[value].flat()] as [string, string, string?]);
  return {
    byRole: Object.fromEntries(entries.map(([role, estimator]) => [role, estimator])),
    lossByRole: Object.fromEntries(entries.flatMap(([role, , loss]) => (loss === undefined ? [] : [[role, loss]]))),
  };
}

export function estimatorOf(role: string, { estimator, byRole = {}, custom }: AdvantageOptions): EstimatorSpec {
  return estimatorNamed(Object.hasOwn(byRole, role) ? byRole[role]! : estimator, custom);
}

/**
 * One figure a trajectory. Each role is estimated by itself, all its groups at once.
 *
 * @returns `[groups][members]`, in the order of `groups`, finite
 * @throws UserError when an estimator is unknown, or one of the experiment's own gives other than a number a member
 * @example
 * const advantages = estimateAdvantages(groups, { ...estimatorPresets.rllm, estimator: "grpo", std: true });
 */
export function estimateAdvantages(groups: readonly TrajectoryGroup[], options: AdvantageOptions): number[][] {
  const advantages: number[][] = groups.map(() => []);
  for (const role of new Set(groups.map((group) => group.role))) {
    const own = groups.filter((group) => group.role === role);
    const estimated = estimatorOf(role, options).compare(own.map(toRewardGroup), options);
    checkEstimates(role, own, estimated);
    let position = 0;
    groups.forEach((group, index) => {
      if (group.role === role) advantages[index] = estimated[position++]!;
    });
  }
  return advantages;
}

function toRewardGroup({ members, baseline }: TrajectoryGroup): RewardGroup {
  return {
    rewards: members.map(({ reward }) => reward),
    lengths: members.map(({ trajectory }) => sampledLength(trajectory)),
    ...(baseline === undefined ? {} : { baselines: [baseline] }),
    members,
  };
}

/** Tokens that the trained policy sampled. */
function sampledLength({ steps }: Trajectory): number {
  return steps.reduce((sum, { tokens, policyVersion }) => sum + (policyVersion < 0 ? 0 : tokens.length), 0);
}

/** What a user's own estimator gives is not known to be right. */
function checkEstimates(role: string, groups: readonly TrajectoryGroup[], estimated: readonly number[][]): void {
  groups.forEach(({ id, members }, index) => {
    const own = estimated[index];
    if (own?.length === members.length && own.every(Number.isFinite)) return;
    throw new UserError(
      `the advantage estimator of role ${role} gives [${own?.join(", ") ?? ""}] for group ${id}: ` +
        `wanted are ${members.length} finite numbers`,
    );
  });
}
