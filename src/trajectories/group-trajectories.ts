/** Groups trajectories to compare. What cannot be compared is dropped and counted; it never gets a reward of 0. */
import {
  type Episode,
  isSideRole,
  type TerminationReason,
  type Trajectory,
  type TrajectoryGroup,
  terminationReasons,
} from "./types.ts";

export interface GroupedTrajectories {
  /** In the order in which the groups first appear. */
  groups: TrajectoryGroup[];
  /** `groups/*`: trajectories before and after, group sizes, and what was dropped by cause. */
  counts: Record<string, number>;
}

export interface GroupingOptions {
  /** Episodes that ended for one of these reasons are dropped before anything is compared. */
  masked?: ReadonlySet<TerminationReason>;
}

/** `rllm.compact_filtering`. */
export type CompactFiltering = { enable: boolean } & Readonly<Record<`mask_${TerminationReason}`, boolean>>;

/** Episodes that ended for these reasons are dropped before anything is compared. */
export function maskedReasons(filtering: CompactFiltering): ReadonlySet<TerminationReason> {
  if (!filtering.enable) return new Set();
  return new Set(terminationReasons.filter((reason) => filtering[`mask_${reason}`]));
}

type Candidate = Omit<TrajectoryGroup["members"][number], "reward">;

/** Why a trajectory cannot be compared, or undefined. Unknown rewards are handled group by group. */
function dropCause(episode: Episode, { steps, reward }: Trajectory, masked: ReadonlySet<TerminationReason>) {
  if (masked.has(episode.termination)) return `masked_${episode.termination}`;
  if (episode.failure !== undefined && reward === null) return "failed_episode";
  if (steps.length === 0) return "no_steps";
  return reward === null || Number.isFinite(reward) ? undefined : "reward_not_finite";
}

/**
 * Trajectories of the same task and role, across episodes, become one group. If no trajectory of a group has a reward of
 * its own, the rewards of their last steps are compared. If some rewards of a group are unknown, the known ones are
 * compared with each other (`groups/partly_dropped` counts such groups).
 *
 * @example
 * const { groups, counts } = groupTrajectories(episodes); // groups[0].id === "gsm8k/17:solver"
 */
export function groupTrajectories(
  episodes: readonly Episode[],
  { masked = new Set() }: GroupingOptions = {},
): GroupedTrajectories {
  const candidates = new Map<string, Omit<TrajectoryGroup, "members"> & { own: Candidate[] }>();
  const incomplete = new Set<string>();
  const causes = [
    ...["failed_episode", "no_steps", "side_call", "unknown_reward", "reward_not_finite"],
    ...[...masked].map((reason) => `masked_${reason}`),
  ];
  const dropped = Object.fromEntries(causes.map((cause) => [cause, 0]));
  const drop = (id: string, cause: string) => {
    dropped[cause]!++;
    incomplete.add(id);
  };
  for (const episode of episodes) {
    for (const trajectory of episode.trajectories) {
      const [taskId, role] = [episode.taskId, trajectory.name];
      const id = `${taskId}:${role}`;
      const cause = dropCause(episode, trajectory, masked);
      const group = candidates.get(id);
      if (cause !== undefined) drop(id, cause);
      else if (group) group.own.push({ episode, trajectory });
      else candidates.set(id, { id, taskId, role, own: [{ episode, trajectory }] });
    }
  }
  const groups = [...candidates.values()].flatMap(({ own, ...group }): TrajectoryGroup[] => {
    const bySteps = own.every(({ trajectory }) => trajectory.reward === null);
    const members = own.flatMap((one) => {
      const { steps, reward: whole } = one.trajectory;
      const reward = bySteps ? (steps.at(-1)?.reward ?? null) : whole;
      if (reward !== null && Number.isFinite(reward)) return [{ ...one, reward }];
      const unknown = isSideRole(group.role) ? "side_call" : "unknown_reward";
      drop(group.id, reward === null ? unknown : "reward_not_finite");
      return [];
    });
    return members.length === 0 ? [] : [{ ...group, members }];
  });
  const before = episodes.reduce((total, { trajectories }) => total + trajectories.length, 0);
  return { groups, counts: { ...sizeCounts(before, groups), ...dropCounts(groups, incomplete, dropped) } };
}

/** `groups/*` of the trajectories before and after, and of the sizes of the groups. */
export function sizeCounts(before: number, groups: readonly TrajectoryGroup[]): Record<string, number> {
  const sizes = groups.map(({ members }) => members.length);
  const after = sizes.reduce((total, size) => total + size, 0);
  return {
    "groups/num_trajs_before_filter": before,
    "groups/num_trajs_after_filter": after,
    "groups/num_groups": sizes.length,
    "groups/avg_group_size": sizes.length === 0 ? 0 : after / sizes.length,
    "groups/max_group_size": Math.max(0, ...sizes),
    "groups/min_group_size": sizes.length === 0 ? 0 : Math.min(...sizes),
  };
}

function dropCounts(
  groups: readonly TrajectoryGroup[],
  incomplete: ReadonlySet<string>,
  dropped: Readonly<Record<string, number>>,
): Record<string, number> {
  return {
    "groups/partly_dropped": groups.filter(({ id }) => incomplete.has(id)).length,
    ...Object.fromEntries(Object.entries(dropped).map(([cause, count]) => [`groups/dropped_trajs/${cause}`, count])),
  };
}

/**
 * Drops groups with fewer than `minimum` trajectories. A lone reward has nothing to be compared with; an estimator that
 * uses it as it is would train on noise.
 */
export function dropSmallGroups(groups: readonly TrajectoryGroup[], minimum = 2): GroupedTrajectories {
  const kept = groups.filter(({ members }) => members.length >= minimum);
  return {
    groups: kept,
    counts: {
      "batch/groups_before_filter": groups.length,
      "batch/groups_after_filter": kept.length,
      "batch/groups_dropped_insufficient_trajs": groups.length - kept.length,
    },
  };
}
