/** Tasks drawn, attempted and grouped, draw after draw, until they are worth an optimizer step. */
import { maskedReasons } from "../trajectories/compact-filtering.ts";
import { type Draw, type Gathered, gather, groupsWithSignal, nothingGathered } from "../trajectories/gather.ts";
import { dropSmallGroups, groupTrajectories } from "../trajectories/group-trajectories.ts";
import type { Episode, TrajectoryGroup } from "../trajectories/types.ts";
import { type Collection, collectEpisodes, tasksOfDraw } from "./collect-episodes.ts";
import { needsGreedyReplies, tasksPerStep } from "./credit-options.ts";
import { watchOutage } from "./failing-rollouts.ts";
import type { Run } from "./run.ts";

export interface GatheredStep extends Gathered {
  epoch: number;
  /** The groups to train on; `groups` has those too that only say how good the policy is. */
  kept: readonly TrajectoryGroup[];
}

/**
 * One draw, unless rejection sampling or dynamic sampling finds too little in it: then the next tasks are drawn too. All
 * draws of a step are made by the same weights, and a step that is begun anew makes the same ones.
 */
export async function gatherEpisodes(run: Run, step: number): Promise<GatheredStep> {
  const { progress, emit } = run;
  let gathered = nothingGathered;
  for (;;) {
    const draw = progress.draws + gathered.draws + 1;
    const { epoch, tasks } = tasksOfDraw(run, draw);
    gathered = gather(gathered, await attempt(run, { tasks, step, draw }));
    const missing = whatIsMissing(run, gathered);
    if (missing === undefined) return { ...keepInformative(run, gathered), epoch };
    if (gathered.draws >= maxDraws(run)) {
      emit({
        type: "warning",
        text: `step ${step}: ${missing} after ${gathered.draws} draws; training on what there is`,
      });
      return { ...keepInformative(run, gathered), epoch };
    }
    emit({
      type: "warning",
      text: `step ${step}: ${missing} after draw ${gathered.draws}; drawing ${tasks.length} more`,
    });
  }
}

async function attempt(run: Run, drawn: Pick<Collection, "tasks" | "step" | "draw">): Promise<Draw> {
  const { n: rollouts } = run.config.rllm.rollout;
  const sampling = run.config.rllm.rollout.train;
  const outage = watchOutage(run);
  let episodes: Episode[];
  do {
    episodes = await collectEpisodes(run, { ...drawn, purpose: "train", rollouts, sampling });
  } while (await outage.lasts({ mode: "train", step: drawn.step }, episodes));
  if (!comparesWithGreedy(run)) return toDraw(run, episodes);
  return toDraw(run, episodes, await collectEpisodes(run, { ...drawn, ...greedyReplies(run) }));
}

export const comparesWithGreedy = ({ config, experiment }: Run) => needsGreedyReplies(config, experiment.estimators);

/** One reply a task, the likeliest. */
export const greedyReplies = ({ config }: Run): Pick<Collection, "purpose" | "rollouts" | "sampling"> => ({
  ...{ purpose: "train", rollouts: 1 },
  sampling: { ...config.rllm.rollout.train, temperature: 0 },
});

/** Episodes of different tasks as groups, without those that cannot be compared. */
export function toDraw({ config }: Run, episodes: readonly Episode[], greedy?: readonly Episode[]): Draw {
  const grouped = groupTrajectories(episodes, { masked: maskedReasons(config.rllm.compact_filtering) });
  // A group that failures left with one member has nothing to compare it with; one of a single rollout never had.
  const least = Math.min(config.rllm.rejection_sample.min_trajs_per_group, config.rllm.rollout.n);
  const large = dropSmallGroups(grouped.groups, least);
  const counts = { ...grouped.counts, ...large.counts };
  if (!greedy) return { episodes, groups: large.groups, counts };
  const groups = withBaselines(large.groups, greedy);
  return { episodes, groups, counts: { ...counts, "groups/dropped_no_baseline": large.groups.length - groups.length } };
}

/** Groups whose greedy reply has no known reward are left out. */
function withBaselines(groups: readonly TrajectoryGroup[], greedy: readonly Episode[]): TrajectoryGroup[] {
  const baselines = new Map(groupTrajectories(greedy).groups.map(({ id, members }) => [id, members[0]!.reward]));
  return groups.flatMap((group) => {
    const baseline = baselines.get(group.id);
    return baseline === undefined ? [] : [{ ...group, baseline }];
  });
}

/** Why one more draw is needed, in words. */
function whatIsMissing({ config }: Run, { groups, solved }: Gathered): string | undefined {
  const { rejection_sample: rejection, dynamic_sampling: dynamic } = config.rllm;
  const wanted = rejection.min_partial_solve_tasks;
  if (gathersPartial(config) && solved.partial < wanted) {
    return `${solved.partial} of ${wanted} tasks solved by some of their rollouts and not by others`;
  }
  const size = tasksPerStep(config);
  const informative = tasksOf(groupsWithSignal(groups)).length;
  return dynamic.enable && informative < size ? `${informative} of ${size} tasks with differing rewards` : undefined;
}

const gathersPartial = ({
  rllm: {
    rejection_sample: { enable, mode },
  },
}: Run["config"]) => (mode ?? (enable ? "episode" : "none")) === "episode";

function maxDraws({ config }: Run): number {
  const { rejection_sample: rejection, dynamic_sampling: dynamic } = config.rllm;
  return Math.max(gathersPartial(config) ? rejection.max_rounds : 1, dynamic.enable ? dynamic.max_rounds : 1);
}

/** With dynamic sampling the groups whose rewards differ, of as many tasks as a batch has; else all. */
export function keepInformative({ config }: Run, gathered: Gathered): Omit<GatheredStep, "epoch"> {
  if (!config.rllm.dynamic_sampling.enable) return { ...gathered, kept: gathered.groups };
  const informative = groupsWithSignal(gathered.groups);
  const tasks = new Set(tasksOf(informative).slice(0, tasksPerStep(config)));
  const kept = informative.filter(({ taskId }) => tasks.has(taskId));
  const counts = {
    ...gathered.counts,
    "batch/draws": gathered.draws,
    "groups/dropped_no_signal": gathered.groups.length - informative.length,
    "groups/dropped_surplus": informative.length - kept.length,
  };
  return { ...gathered, counts, kept };
}

const tasksOf = (groups: readonly TrajectoryGroup[]) => [...new Set(groups.map(({ taskId }) => taskId))];
