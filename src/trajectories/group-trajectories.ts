/** Episodes into groups of comparable trajectories. What cannot be compared is left out and counted, never graded 0. */
import type { Episode, Trajectory, TrajectoryGroup } from "./types.ts";

export interface GroupedTrajectories {
  /** In the order in which the groups first appear. */
  groups: TrajectoryGroup[];
  /** `groups/*`: trajectories before and after, group sizes, and what was dropped by cause. */
  counts: Record<string, number>;
}

/** The reward of a trajectory that may be compared, or why it may not. */
function usableReward(episode: Episode, trajectory: Trajectory): number | DropCause {
  if (episode.failure !== undefined) return "failed_episode";
  if (trajectory.steps.length === 0) return "no_steps";
  if (trajectory.reward === null) return "unknown_reward";
  return Number.isFinite(trajectory.reward) ? trajectory.reward : "reward_not_finite";
}

const dropCauses = ["failed_episode", "no_steps", "unknown_reward", "reward_not_finite"] as const;
type DropCause = (typeof dropCauses)[number];

/**
 * Trajectories of the same task and role, across episodes, become one group. Of a group in which some rewards are
 * unknown the known ones are compared with each other (`groups/partly_dropped` counts such groups).
 *
 * @example
 * const { groups, counts } = groupTrajectories(episodes); // groups[0].id === "gsm8k/17:solver"
 */
export function groupTrajectories(episodes: readonly Episode[]): GroupedTrajectories {
  const groups = new Map<string, TrajectoryGroup>();
  const incomplete = new Set<string>();
  const dropped: Record<DropCause, number> = {
    failed_episode: 0,
    no_steps: 0,
    unknown_reward: 0,
    reward_not_finite: 0,
  };
  let before = 0;
  for (const episode of episodes) {
    for (const trajectory of episode.trajectories) {
      before++;
      const id = `${episode.taskId}:${trajectory.name}`;
      const reward = usableReward(episode, trajectory);
      if (typeof reward === "string") {
        dropped[reward]++;
        incomplete.add(id);
        continue;
      }
      const group = groups.get(id) ?? { id, taskId: episode.taskId, role: trajectory.name, members: [] };
      group.members.push({ episode, trajectory, reward });
      groups.set(id, group);
    }
  }
  const kept = [...groups.values()];
  const sizes = kept.map(({ members }) => members.length);
  const after = sizes.reduce((total, size) => total + size, 0);
  return {
    groups: kept,
    counts: {
      "groups/num_trajs_before_filter": before,
      "groups/num_trajs_after_filter": after,
      "groups/num_groups": kept.length,
      "groups/avg_group_size": kept.length === 0 ? 0 : after / kept.length,
      "groups/max_group_size": Math.max(0, ...sizes),
      "groups/min_group_size": kept.length === 0 ? 0 : Math.min(...sizes),
      "groups/partly_dropped": kept.filter(({ id }) => incomplete.has(id)).length,
      ...Object.fromEntries(dropCauses.map((cause) => [`groups/dropped_trajs/${cause}`, dropped[cause]])),
    },
  };
}

/**
 * Leaves out groups with fewer than `minimum` trajectories: a lone reward has nothing to be compared with, and an
 * estimator that then takes it as it is would push on noise.
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
