/** Episodes as groups to compare, and whether the groups are worth an optimizer step. */
import { type Draw, type Gathered, groupsWithSignal } from "../../trajectories/gather.ts";
import { dropSmallGroups, groupTrajectories } from "../../trajectories/group-trajectories.ts";
import type { Episode, TerminationReason, TrajectoryGroup } from "../../trajectories/types.ts";

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

export interface GatheredStep extends Gathered {
  /** The groups to train on. `groups` also has those that only count in metrics. */
  kept: readonly TrajectoryGroup[];
}

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
    return `${solved.partial} of ${partial} tasks solved by some of their rollouts and not by others`;
  }
  const informative = tasksOf(groupsWithSignal(groups)).length;
  return dynamic && informative < tasks ? `${informative} of ${tasks} tasks with differing rewards` : undefined;
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
