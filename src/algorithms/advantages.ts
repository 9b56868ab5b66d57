/** Advantages: from groups of rewards to one value for each token, by trajectories, by steps, or with a critic. */
import { UserError } from "../base/errors.ts";
import { nearest } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import { rowsOf } from "../trajectories/batch.ts";
import type { TrainingBatch, Trajectory, TrajectoryGroup } from "../trajectories/types.ts";
import {
  type EstimatorOptions,
  type EstimatorSpec,
  estimators,
  type GaeOptions,
  generalizedAdvantages,
  type Rewards,
  returnsToGo,
  tokenRewards,
} from "./estimators.ts";

// Estimates one advantage per trajectory from groups of rewards.

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
  const compare = ownValue(custom, name);
  const known = compare === undefined ? ownValue<EstimatorSpec>(estimators, name) : { compare };
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

function estimatorOf(role: string, { estimator, byRole, custom }: AdvantageOptions): Estimator {
  return estimatorNamed(ownValue(byRole, role) ?? estimator, custom);
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

// Advantages of single steps: the same step of each rollout of a task is compared by its reward.

type Member = TrajectoryGroup["members"][number];

export interface StepAdvantages {
  /** `[groups][members][steps]` */
  advantages: number[][][];
  /** `groups/*`: trajectories with some unknown step rewards, and steps that only one rollout reached. */
  counts: Record<string, number>;
}

/**
 * Compares the rewards of step `i` of all members of a group. If a workflow returns one reward per trajectory, it counts
 * for the last step and, discounted, for the earlier ones. Steps that cannot be compared get advantage 0 and are counted.
 *
 * @param options estimator and constants, as for whole trajectories
 * @param gamma discount per step
 */
export function estimateStepAdvantages(
  groups: readonly TrajectoryGroup[],
  options: AdvantageOptions,
  gamma: number,
): StepAdvantages {
  const counts = { "groups/unknown_step_rewards": 0, "groups/lone_steps": 0 };
  const comparisons: { group: TrajectoryGroup; step: number; rows: number[][] }[] = [];
  const advantages = groups.map((group) => {
    const candidates = group.members.map((member) => ({
      member,
      rewards: stepRewards(member, gamma),
      row: member.trajectory.steps.map(() => 0),
    }));
    const known = candidates.flatMap(({ rewards, ...rest }) => (rewards === null ? [] : [{ rewards, ...rest }]));
    counts["groups/unknown_step_rewards"] += candidates.length - known.length;
    const longest = Math.max(0, ...known.map(({ rewards }) => rewards.length));
    for (let step = 0; step < longest; step++) {
      const members: Member[] = [];
      const rows: number[][] = [];
      for (const { member, rewards, row } of known) {
        const reward = rewards[step];
        if (reward === undefined) continue;
        members.push({ ...member, reward });
        rows.push(row);
      }
      if (members.length < Math.min(2, candidates.length)) counts["groups/lone_steps"]++;
      else comparisons.push({ group: { ...group, members }, step, rows });
    }
    return candidates.map(({ row }) => row);
  });
  const estimated = estimateAdvantages(
    comparisons.map(({ group }) => group),
    options,
  );
  for (const [index, { step, rows }] of comparisons.entries()) {
    for (const [member, row] of rows.entries()) row[step] = estimated[index]?.[member] ?? 0;
  }
  return { advantages, counts };
}

/** Divides each trajectory's advantage by its number of steps, so that long trajectories do not weigh more. */
export function shareAmongSteps(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): number[][] {
  return groups.map(({ members }, group) =>
    members.map(({ trajectory }, member) => advantages[group]![member]! / Math.max(trajectory.steps.length, 1)),
  );
}

/** `[steps]`, or null if only some of the rewards are known. */
function stepRewards({ trajectory: { steps }, reward }: Member, gamma: number): readonly number[] | null {
  const given = steps.map((step) => step.reward);
  if (given.every((value) => value === null)) {
    const atEnd = given.map((_, index) => (index === steps.length - 1 ? reward : 0));
    return Array.from(returnsToGo(atEnd, gamma));
  }
  return given.every((value) => value !== null && Number.isFinite(value)) ? (given as number[]) : null;
}

// Centers and scales the advantages of a batch's tokens.

export interface WhiteningOptions {
  /** 0: population variance; 1: sample variance. */
  ddof: 0 | 1;
  eps: number;
  /** Where `eps` is used: added to the variance, added to the deviation, or as the smallest variance. */
  epsAt: "variance" | "deviation" | "floor";
  /** Added to the number of values that sums are divided by. */
  countEps?: number;
  /** `false`: only center. */
  scale?: boolean;
}

/** The constants that each system uses. */
export const whitenings = {
  /** verl's `masked_whiten`, after reinforce_plus_plus, reinforce_plus_plus_baseline and gae. */
  verl: { ddof: 1, eps: 1e-8, epsAt: "variance", countEps: 1e-8 },
  /** LightRFT's `advantages_norm`. */
  lightrft: { ddof: 1, eps: 1e-8, epsAt: "deviation" },
  lightrftGae: { ddof: 1, eps: 1e-9, epsAt: "deviation" },
  /** LightRFT over all experiences of a rollout. */
  lightrftBatch: { ddof: 0, eps: 1e-8, epsAt: "floor" },
} as const satisfies Record<string, WhiteningOptions>;

/** `(value - center) * factor` whitens. Fewer than two values, or equal values, become 0. */
export interface Whitening {
  center: number;
  factor: number;
}

export function whiteningOf(
  values: readonly number[] | Float32Array | Float64Array,
  options: WhiteningOptions,
): Whitening {
  const { ddof, eps, epsAt, countEps = 0, scale = true } = options;
  const count = values.length;
  const [first] = values;
  if (first === undefined) return { center: 0, factor: 0 };
  let sum = 0;
  for (const value of values) sum += value;
  const center = sum / (count + countEps);
  const equal = values.every((value) => value === first);
  if (!scale) return { center: equal ? first : center, factor: 1 };
  if (equal) return { center, factor: 0 };
  let squares = 0;
  for (const value of values) squares += (value - center) ** 2;
  const variance = ((squares / (count + countEps)) * count) / (count - ddof);
  const divisors = {
    variance: Math.sqrt(variance + eps),
    deviation: Math.sqrt(variance) + eps,
    floor: Math.sqrt(Math.max(variance, eps)),
  };
  return { center, factor: 1 / divisors[epsAt] };
}

// What changes rewards before they are trained on: a penalty of long replies, bounds, and running normalization.

/** DAPO's soft penalty of replies near the length limit (arXiv 2503.14476). */
export interface OverlongPenalty {
  /** Length limit, in tokens. */
  maxLength: number;
  /** Number of tokens before the limit that are penalized. */
  buffer: number;
  /** Penalty at the limit. */
  factor: number;
}

/** Added to the reward of a reply of `length` tokens: 0 before the buffer, then linear to `-factor` at the limit. */
export function overlongPenalty(length: number, { maxLength, buffer, factor }: OverlongPenalty): number {
  if (buffer <= 0) return 0;
  return Math.min(0, ((maxLength - buffer - length) / buffer) * factor);
}

/** Clips values to `[-bound, bound]` and returns the share that was outside. A bound of 0 or less is ignored. */
export function clipSymmetric<Values extends number[] | Float32Array | Float64Array>(
  values: Values,
  bound: number,
): { values: Values; fraction: number } {
  if (bound <= 0 || values.length === 0) return { values, fraction: 0 };
  let outside = 0;
  const clipped = values.map((value) => {
    if (Math.abs(value) > bound) outside++;
    return Math.min(Math.max(value, -bound), bound);
  }) as Values;
  return { values: clipped, fraction: outside / values.length };
}

/** Mean and deviation of all rewards so far, in a form that checkpoints can save. */
export interface RunningMoments {
  count: number;
  mean: number;
  /** Sum of squared distances to the mean. */
  squares: number;
}

export const noMoments: RunningMoments = { count: 0, mean: 0, squares: 0 };

/** Adds rewards to the moments (parallel algorithm of Chan, Golub and LeVeque). */
export function withRewards(moments: RunningMoments, rewards: readonly number[]): RunningMoments {
  const count = moments.count + rewards.length;
  if (rewards.length === 0) return moments;
  const batchMean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const batchSquares = rewards.reduce((sum, reward) => sum + (reward - batchMean) ** 2, 0);
  const shift = batchMean - moments.mean;
  return {
    count,
    mean: moments.mean + (shift * rewards.length) / count,
    squares: moments.squares + batchSquares + (shift ** 2 * moments.count * rewards.length) / count,
  };
}

/** The sample deviation; 1 for fewer than two rewards or equal rewards. */
export function runningDeviation({ count, squares }: RunningMoments): number {
  return count > 1 && squares > 0 ? Math.sqrt(squares / (count - 1)) : 1;
}

/**
 * Adds the rewards to the running moments, then divides them by the running deviation; `center` subtracts the running
 * mean first.
 *
 * @example
 * const { rewards, moments } = normalizeRewards(progress.rewardMoments, [1, 0], { center: true });
 */
export function normalizeRewards(
  before: RunningMoments,
  rewards: readonly number[],
  { center }: { center: boolean },
): { rewards: number[]; moments: RunningMoments } {
  const moments = withRewards(before, rewards);
  const deviation = runningDeviation(moments);
  const origin = center ? moments.mean : 0;
  return { rewards: rewards.map((reward) => (reward - origin) / deviation), moments };
}

// Advantages of a batch's tokens, from the advantage of each sequence.

export interface TokenAdvantageOptions extends AdvantageOptions {
  /** Discount per token. */
  gamma: number;
  /** Whiten the tokens of the batch, regardless of the estimator (LightRFT's `advantages_norm`). */
  whiten: boolean;
  /** Bound on the absolute advantage; 0 turns it off. */
  clip: number;
}

type Tokens = Pick<TrainingBatch, "advantages" | "offsets" | "roles">;

/** `[N]`: each sequence's advantage counts for its last token and, discounted, for the earlier ones. */
export function discountAdvantages({ advantages, offsets }: Tokens, gamma: number): Float32Array {
  if (gamma === 1) return advantages;
  const discounted = advantages.slice();
  for (const row of rowsOf(discounted, offsets)) {
    row.set(returnsToGo(tokenRewards(row.length, row.at(-1) ?? 0), gamma));
  }
  return discounted;
}

/**
 * Applies, in this order: the whitening of estimators that have one (over the tokens of their roles), the whitening of
 * all tokens, the bound.
 *
 * @returns `[N]`, and `advantage/clip_fraction` if there is a bound
 */
export function normalizeAdvantages(
  { advantages: given, offsets, roles }: Tokens,
  options: TokenAdvantageOptions,
): { advantages: Float32Array; metrics: Record<string, number> } {
  const advantages = Float64Array.from(given);
  const rows = rowsOf(advantages, offsets);
  for (const role of new Set(roles)) {
    const { whitens } = estimatorOf(role, options);
    if (whitens === "always" || (whitens === "by-preset" && options.whitens === "tokens")) {
      const ofRole = rows.filter((_, index) => roles[index] === role);
      whitenRows(ofRole, whitenings.verl);
    }
  }
  if (options.whiten) whitenRows(rows, whitenings.lightrft);
  const { values, fraction } = clipSymmetric(advantages, options.clip);
  return {
    advantages: Float32Array.from(values),
    metrics: options.clip > 0 ? { "advantage/clip_fraction": fraction } : {},
  };
}

/** In place, over all tokens of the rows. */
function whitenRows(rows: readonly Float64Array[], options: WhiteningOptions): void {
  const { center, factor } = whiteningOf(
    rows.flatMap((row) => Array.from(row)),
    options,
  );
  for (const row of rows) row.set(row.map((value) => (value - center) * factor));
}

// Advantages of a batch's tokens from the values of a critic, and the returns that the critic learns.

/**
 * Generalized advantages of the sequences in `judged`; the others keep their advantages. The reward of a sequence
 * is at its last trained token, and the penalty of each token is subtracted. Tokens of the environment are skipped.
 *
 * @param rewards `[N]` the reward of each sequence, repeated at all of its tokens
 * @param values `[N]` the critic's values of the states before the tokens
 * @param penalties `[N]` KL penalty of each token, if it is subtracted from the reward
 * @returns `[N]` advantages, and returns `A + V` (0 for sequences that are not judged)
 */
export function criticAdvantages(
  { advantages: kept, offsets }: Pick<TrainingBatch, "advantages" | "offsets">,
  judged: Int32Array,
  { rewards, values, penalties }: { rewards: Float32Array; values: Float32Array; penalties?: Float32Array | undefined },
  options: GaeOptions,
): { advantages: Float32Array; returns: Float32Array } {
  const advantages = kept.slice();
  const returns = new Float32Array(kept.length);
  for (const sequence of judged) {
    const [from, to] = [offsets[sequence], offsets[sequence + 1]];
    const own = rewards.subarray(from, to);
    const rewarded = tokenRewards(own.length, own.at(-1) ?? 0, penalties?.subarray(from, to), 1);
    const found = generalizedAdvantages(rewarded, values.subarray(from, to), options);
    advantages.set(found.advantages, from);
    returns.set(found.returns, from);
  }
  return { advantages, returns };
}
