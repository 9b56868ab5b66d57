/**
 * From episodes to groups of trajectories that are compared. What cannot be compared is dropped and counted; it never
 * gets a reward of 0.
 */
import { allEqual } from "../base/values.ts";
import {
  type Episode,
  isSideRole,
  type TerminationReason,
  type Trajectory,
  type TrajectoryGroup,
  terminationReasons,
} from "./types.ts";

// Groups trajectories to compare. What cannot be compared is dropped and counted; it never gets a reward of 0.

export interface GroupedTrajectories {
  /** In the order in which the groups first appear. */
  groups: TrajectoryGroup[];
  /** `groups/*`: trajectories before and after, group sizes, and what was dropped by cause. */
  counts: Record<string, number>;
}

interface MaskOptions {
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
  { masked = new Set() }: MaskOptions = {},
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
function sizeCounts(before: number, groups: readonly TrajectoryGroup[]): Record<string, number> {
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

// Episodes as groups to compare, gathered over draws of tasks until they are worth an optimizer step.

export interface GroupingOptions {
  /** Episodes that ended for one of these reasons are dropped before anything is compared. */
  masked: ReadonlySet<TerminationReason>;
  /** Smaller groups are dropped. */
  minimum: number;
}

export interface GatheringOptions {
  /** Tasks that a step trains on. */
  tasks: number;
  /** Tasks that some of their rollouts must solve and others not; undefined: any number. */
  partial: number | undefined;
  /** Only groups whose rewards differ count. */
  dynamic: boolean;
  maxDraws: number;
}

/** The outcome of one draw of tasks. */
export interface Draw {
  /** Counts from 0. */
  epoch: number;
  episodes: readonly Episode[];
  groups: readonly TrajectoryGroup[];
  /** `groups/*` and `batch/*`, as grouping and filtering counted them. */
  counts: Readonly<Record<string, number>>;
}

/** Tasks by how many of their rollouts solved them. */
interface Solved {
  none: number;
  partial: number;
  all: number;
}

export interface Gathered extends Draw {
  draws: number;
  solved: Solved;
}

export interface GatheredStep extends Gathered {
  /** The groups to train on. `groups` also has those that only count in metrics. */
  kept: readonly TrajectoryGroup[];
}

export const nothingGathered: Gathered = {
  epoch: 0,
  episodes: [],
  groups: [],
  counts: {},
  draws: 0,
  solved: { none: 0, partial: 0, all: 0 },
};

/**
 * Groups the episodes of different tasks, and drops what cannot be compared.
 *
 * @param greedy the greedy replies to the same tasks, if the estimator compares with them
 */
export function groupEpisodes(
  { epoch, episodes, greedy }: { epoch: number; episodes: readonly Episode[]; greedy?: readonly Episode[] | undefined },
  { masked, minimum }: GroupingOptions,
): Draw {
  const all = groupTrajectories(episodes, { masked });
  const large = dropSmallGroups(all.groups, minimum);
  const counts = { ...all.counts, ...large.counts };
  if (!greedy) return { epoch, episodes, groups: large.groups, counts };
  const groups = withBaselines(large.groups, greedy);
  const dropped = { "groups/dropped_no_baseline": large.groups.length - groups.length };
  return { epoch, episodes, groups, counts: { ...counts, ...dropped } };
}

/** Groups whose greedy reply has no known reward are dropped. */
function withBaselines(groups: readonly TrajectoryGroup[], greedy: readonly Episode[]): TrajectoryGroup[] {
  const baselines = new Map(groupTrajectories(greedy).groups.map(({ id, members }) => [id, members[0]?.reward]));
  return groups.flatMap((group) => {
    const baseline = baselines.get(group.id);
    return baseline === undefined ? [] : [{ ...group, baseline }];
  });
}

/** A task that comes up in two draws counts as two: its rollouts are compared within their draw. */
export function gather(before: Gathered, { epoch, episodes, groups, counts }: Draw): Gathered {
  const names = new Set([...Object.keys(before.counts), ...Object.keys(counts)]);
  const all = [...before.groups, ...groups];
  const summed = Object.fromEntries([...names].map((name) => [name, (before.counts[name] ?? 0) + (counts[name] ?? 0)]));
  const solved = solvedTasks(groups);
  return {
    epoch,
    episodes: [...before.episodes, ...episodes],
    groups: all,
    counts:
      before.draws === 0 ? counts : { ...summed, ...sizeCounts(summed["groups/num_trajs_before_filter"] ?? 0, all) },
    draws: before.draws + 1,
    solved: {
      none: before.solved.none + solved.none,
      partial: before.solved.partial + solved.partial,
      all: before.solved.all + solved.all,
    },
  };
}

/** Counts episodes that still have a trajectory in a group; one without a verdict counts as solved from a reward of 1. */
export function solvedTasks(groups: readonly TrajectoryGroup[]): Solved {
  const byTask = new Map<string, Map<Episode, boolean>>();
  for (const { taskId, members } of groups) {
    const known = byTask.get(taskId) ?? new Map<Episode, boolean>();
    byTask.set(taskId, known);
    for (const { episode, reward } of members)
      known.set(episode, episode.correct ?? (known.get(episode) || reward >= 1));
  }
  const solved: Solved = { none: 0, partial: 0, all: 0 };
  for (const known of byTask.values()) {
    const verdicts = [...known.values()];
    if (!verdicts.includes(true)) solved.none++;
    else if (!verdicts.includes(false)) solved.all++;
    else solved.partial++;
  }
  return solved;
}

/** Groups whose rewards differ. The others teach nothing, regardless of the estimator (DAPO, arXiv 2503.14476). */
export function groupsWithSignal(groups: readonly TrajectoryGroup[]): TrajectoryGroup[] {
  return groups.filter(({ members }) => !allEqual(members.map(({ reward }) => reward)));
}

/** Whether the step needs one more draw, which is reported. */
export function needsAnotherDraw(gathered: Gathered, options: GatheringOptions, warn: (text: string) => void): boolean {
  const missing = describeMissing(gathered, options);
  if (missing === undefined) return false;
  const isLast = gathered.draws >= options.maxDraws;
  warn(
    isLast
      ? `${missing} after ${gathered.draws} draws; training on the tasks so far`
      : `${missing} after draw ${gathered.draws}; drawing more tasks`,
  );
  return !isLast;
}

function describeMissing({ groups, solved }: Gathered, { partial = 0, dynamic, tasks }: GatheringOptions) {
  if (solved.partial < partial) {
    return `only ${solved.partial} of ${partial} tasks are solved by some, but not all, of their rollouts`;
  }
  const informative = tasksOf(groupsWithSignal(groups)).length;
  return dynamic && informative < tasks ? `only ${informative} of ${tasks} tasks have rewards that differ` : undefined;
}

/** All groups; with dynamic sampling those whose rewards differ, of as many tasks as a step trains on. */
export function selectGroups(gathered: Gathered, { dynamic, tasks }: GatheringOptions): GatheredStep {
  if (!dynamic) return { ...gathered, kept: gathered.groups };
  const informative = groupsWithSignal(gathered.groups);
  const chosen = new Set(tasksOf(informative).slice(0, tasks));
  const kept = informative.filter(({ taskId }) => chosen.has(taskId));
  const counts = {
    ...gathered.counts,
    "batch/draws": gathered.draws,
    "groups/dropped_no_signal": gathered.groups.length - informative.length,
    "groups/dropped_surplus": informative.length - kept.length,
  };
  return { ...gathered, counts, kept };
}

const tasksOf = (groups: readonly TrajectoryGroup[]) => [...new Set(groups.map(({ taskId }) => taskId))];
