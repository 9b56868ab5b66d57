/** The consuming half of asynchronous training: takes results as they arrive, until there are enough for an optimizer step. */
import { append } from "../../append.ts";
import { mean } from "../../statistics.ts";
import { oldestVersion } from "../../trajectories/oldest-version.ts";
import type { AsyncOptions } from "../recipe/async-options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { checkPrompts } from "../rollouts/failing-rollouts.ts";
import {
  type GatheredStep,
  type GroupingOptions,
  gather,
  groupEpisodes,
  groupsWithSignal,
  nothingGathered,
  selectGroups,
} from "../rollouts/group-episodes.ts";
import type { Dispatch, TaskResult } from "./dispatch.ts";
import { dropStale, dropUninformative, skip } from "./dispatch-window.ts";

/**
 * The first results to arrive, in the order in which their tasks were dispatched. With dynamic sampling, tasks whose
 * rewards do not differ are replaced by the next ones. Tasks that are too old are dispatched again.
 *
 * @param version of the sampler's weights
 * @returns `metrics`: how old the weights are that sampled the tasks, in updates of the sampler
 */
export async function takeBatch(
  dispatch: Dispatch,
  { grouping, gathering }: Pick<Recipe, "grouping" | "gathering">,
  { batch, maxLag }: AsyncOptions,
  version: number,
  warn: (text: string) => void,
): Promise<{ gathered: GatheredStep; metrics: Record<string, number> }> {
  const taken: TaskResult[] = [];
  const lags: number[] = [];
  const tooOld: TaskResult[] = [];
  while (lags.length < batch) {
    const result = await dispatch.take();
    const lag = version - (oldestVersion(result.episodes) ?? version);
    if (lag > maxLag) {
      tooOld.push(result);
      dispatch.update((window) => dropStale(window, result.ticket));
      continue;
    }
    taken.push(result);
    if (!gathering.dynamic || groupsWithSignal(groupEpisodes(result, grouping).groups).length > 0) {
      lags.push(lag);
      continue;
    }
    dispatch.update(dropUninformative);
    if (taken.length < gathering.maxDraws * batch) continue;
    warn(
      `only ${lags.length} of ${batch} tasks have rewards that differ, out of ${taken.length} sampled; training on these`,
    );
    dispatch.update((window) => skip(window, batch - lags.length));
    break;
  }
  if (tooOld.length > 0) {
    const names = tooOld.slice(0, 3).map(({ episodes }) => episodes[0]?.taskId);
    const more = tooOld.length > names.length ? ", ..." : "";
    warn(
      `sampled more than ${maxLag} updates ago and dispatched again: ${tooOld.length} tasks (${names.join(", ")}${more})`,
    );
  }
  const gathered = selectGroups(gatherInOrder(taken, grouping), gathering);
  checkPrompts(gathered.episodes, warn);
  const metrics: Record<string, number> = { "async/groups_consumed": lags.length };
  if (lags.length > 0) {
    metrics["async/staleness_mean"] = mean(lags);
    metrics["async/staleness_min"] = Math.min(...lags);
    metrics["async/staleness_max"] = Math.max(...lags);
  }
  return { gathered, metrics };
}

/** Draw by draw: a task that comes up in several draws counts as several tasks. */
function gatherInOrder(taken: readonly TaskResult[], grouping: GroupingOptions) {
  const draws = new Map<number, TaskResult[]>();
  for (const result of taken.toSorted((left, right) => left.ticket.number - right.ticket.number)) {
    append(draws, result.draw, result);
  }
  return [...draws.values()].reduce((gathered, results) => {
    const { epoch, greedy } = results[0]!;
    const draw = {
      epoch,
      episodes: results.flatMap((result) => result.episodes),
      greedy: greedy && results.flatMap((result) => result.greedy ?? []),
    };
    return gather(gathered, groupEpisodes(draw, grouping));
  }, nothingGathered);
}
