/** Joins draws of tasks until they are worth an optimizer step. */
import { allEqual } from "../statistics.ts";
import { sizeCounts } from "./group-trajectories.ts";
import type { Episode, TrajectoryGroup } from "./types.ts";

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
export interface Solved {
  none: number;
  partial: number;
  all: number;
}

export interface Gathered extends Draw {
  draws: number;
  solved: Solved;
}

export const nothingGathered: Gathered = {
  epoch: 0,
  episodes: [],
  groups: [],
  counts: {},
  draws: 0,
  solved: { none: 0, partial: 0, all: 0 },
};

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

/** Drops groups whose advantages are all 0. */
export function dropUniformGroups<Advantage>(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly Advantage[])[],
  isZero: (advantage: Advantage) => boolean,
): { groups: TrajectoryGroup[]; advantages: (readonly Advantage[])[]; counts: Record<string, number> } {
  const kept = groups.filter((_, index) => !advantages[index]?.every(isZero));
  return {
    groups: kept,
    advantages: advantages.filter((own) => !own.every(isZero)),
    counts: { "groups/dropped_zero_adv": groups.length - kept.length },
  };
}
