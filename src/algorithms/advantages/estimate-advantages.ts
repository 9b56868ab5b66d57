/** Estimates one advantage per trajectory from groups of rewards. */
import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import { own } from "../../own.ts";
import type { Trajectory, TrajectoryGroup } from "../../trajectories/types.ts";
import type { EstimatorOptions, Rewards } from "../estimators/estimator.ts";
import { type EstimatorSpec, estimators } from "../estimators/index.ts";

/** The trajectories of one task and role: input of a custom estimator. */
export interface RewardGroup extends Rewards {
  /** `[M]` the trajectories. */
  members?: TrajectoryGroup["members"];
}

/**
 * Takes all groups of one role at once, so that it can also compare across groups.
 *
 * @returns `[groups][members]`: one advantage per trajectory
 * @example
 * const best: AdvantageEstimator = (groups) =>
 *   groups.map(({ rewards }) => rewards.map((reward) => (reward === Math.max(...rewards) ? 1 : 0)));
 */
export type AdvantageEstimator = (groups: readonly RewardGroup[], options: EstimatorOptions) => number[][];

/** An estimator that is built in, or a custom one, which needs only rewards. */
type Estimator = Pick<EstimatorSpec, "compare" | "whitens" | "needs">;

export interface AdvantageOptions extends EstimatorOptions {
  /** A name of `estimators` or of `custom`. */
  estimator: string;
  /** Estimators of single roles; the others use `estimator`. */
  byRole?: Readonly<Record<string, string>>;
  /** Custom estimators by name; one with the name of a built-in replaces it. */
  custom?: Readonly<Record<string, AdvantageEstimator>>;
}

/** @throws UserError if no estimator has that name */
export function estimatorNamed(name: string, custom: AdvantageOptions["custom"] = {}): Estimator {
  const compare = own(custom, name);
  const known = compare === undefined ? own<EstimatorSpec>(estimators, name) : { compare };
  if (known !== undefined) return known;
  const names = [...Object.keys(estimators), ...Object.keys(custom)];
  throw new UserError(`the advantage estimator ${name} does not exist`, {
    hint: `${[...new Set([...nearest(name, names, 1), ...names])].join(", ")}, or one in the experiment's \`estimators\``,
  });
}

/**
 * Splits a map of roles to estimators, or to pairs of estimator and loss.
 *
 * @example
 * splitEstimatorMap({ solver: "rloo", judge: ["prpo", "cispo"] });
 * // { byRole: { solver: "rloo", judge: "prpo" }, lossByRole: { judge: "cispo" } }
 */
export function splitEstimatorMap(map: Readonly<Record<string, string | readonly [string, string]>>): {
  byRole: Record<string, string>;
  lossByRole: Record<string, string>;
} {
  const byRole: Record<string, string> = {};
  const lossByRole: Record<string, string> = {};
  for (const [role, value] of Object.entries(map)) {
    if (typeof value === "string") byRole[role] = value;
    else [byRole[role], lossByRole[role]] = value;
  }
  return { byRole, lossByRole };
}

export function estimatorOf(role: string, { estimator, byRole, custom }: AdvantageOptions): Estimator {
  return estimatorNamed(own(byRole, role) ?? estimator, custom);
}

/** The sequences whose roles' estimators need this. */
export function sequencesThatNeed(
  need: EstimatorSpec["needs"],
  roles: readonly string[],
  options: AdvantageOptions,
): Int32Array {
  return Int32Array.from(roles.flatMap((role, index) => (estimatorOf(role, options).needs === need ? [index] : [])));
}

/**
 * One advantage per trajectory. Each role is estimated separately, all its groups at once.
 *
 * @returns `[groups][members]`, in the order of `groups`, finite
 * @throws UserError if an estimator is unknown, or a custom one does not return one finite number per member
 * @example
 * const advantages = estimateAdvantages(groups, { ...estimatorPresets.rllm, estimator: "grpo", std: true });
 */
export function estimateAdvantages(groups: readonly TrajectoryGroup[], options: AdvantageOptions): number[][] {
  const advantages = new Map<TrajectoryGroup, number[]>();
  for (const role of new Set(groups.map((group) => group.role))) {
    const ofRole = groups.filter((group) => group.role === role);
    const estimated = estimatorOf(role, options).compare(ofRole.map(toRewardGroup), options);
    ofRole.forEach((group, index) => {
      advantages.set(group, checkedEstimate(group, estimated[index]));
    });
  }
  return groups.map((group) => advantages.get(group) ?? []);
}

function toRewardGroup({ members, baseline }: TrajectoryGroup): RewardGroup {
  const group: RewardGroup = {
    rewards: members.map(({ reward }) => reward),
    lengths: members.map(({ trajectory }) => sampledLength(trajectory)),
    members,
  };
  if (baseline !== undefined) group.baselines = [baseline];
  return group;
}

/** Number of tokens that the trained policy sampled. */
function sampledLength({ steps }: Trajectory): number {
  return steps.reduce((sum, { tokens, policyVersion }) => sum + (policyVersion < 0 ? 0 : tokens.length), 0);
}

/** Custom estimators may return anything. */
function checkedEstimate({ id, role, members }: TrajectoryGroup, estimate: number[] = []): number[] {
  if (estimate.length === members.length && estimate.every(Number.isFinite)) return estimate;
  throw new UserError(
    `the advantage estimator of role ${role} returned [${estimate.join(", ")}] for group ${id}, ` +
      `which needs ${members.length} finite numbers`,
  );
}
