/** The consuming half of asynchronous training: results as they arrive, until they are an optimizer step's worth. */
import { mean } from "../statistics.ts";
import { type Gathered, gather, groupsWithSignal, nothingGathered } from "../trajectories/gather.ts";
import { oldestVersion } from "../trajectories/oldest-version.ts";
import { asyncOptions } from "./async-options.ts";
import { checkPrompts } from "./collect-episodes.ts";
import { type GatheredStep, keepInformative, toDraw } from "./gather-episodes.ts";
import type { Generation, TaskResult } from "./generation.ts";
import type { Run } from "./run.ts";

/**
 * The first results to arrive, in the order in which their tasks were dispatched. With dynamic sampling those whose
 * rewards do not differ are replaced by the next ones; those that are too old are made again.
 *
 * @returns `metrics`: how old the weights are that sampled what was taken, in updates of the sampler
 */
export async function takeBatch(
  run: Run,
  generation: Generation,
): Promise<{ gathered: GatheredStep; metrics: Record<string, number> }> {
  const { batch, maxLag } = asyncOptions(run.config);
  const { enable: dynamic, max_rounds } = run.config.rllm.dynamic_sampling;
  const step = run.progress.step + 1;
  const warn = (text: string) => run.emit({ type: "warning", text: `step ${step}: ${text}` });
  const taken: TaskResult[] = [];
  const lags: number[] = [];
  const tooOld: TaskResult[] = [];
  while (lags.length < batch) {
    const result = await generation.take();
    const lag = run.sampler.version - (oldestVersion(result.episodes) ?? run.sampler.version);
    if (lag > maxLag) {
      tooOld.push(result);
      generation.stale(result);
      continue;
    }
    taken.push(result);
    if (!dynamic || hasSignal(run, result)) {
      lags.push(lag);
      continue;
    }
    generation.filtered(result);
    if (taken.length < max_rounds * batch) continue;
    warn(`${lags.length} of ${batch} tasks with differing rewards after ${taken.length}; training on what there is`);
    generation.skip(batch - lags.length);
    break;
  }
  if (tooOld.length > 0) {
    const names = tooOld.slice(0, 3).map(({ episodes }) => episodes[0]!.taskId);
    const more = tooOld.length > names.length ? ", ..." : "";
    warn(
      `sampled more than ${maxLag} updates ago and dispatched again: ${tooOld.length} tasks (${names.join(", ")}${more})`,
    );
  }
  const gathered = gatherInOrder(run, taken);
  checkPrompts(run, gathered.episodes);
  return {
    gathered: { ...keepInformative(run, gathered), epoch: Math.max(...taken.map(({ epoch }) => epoch)) },
    metrics: {
      "async/groups_consumed": lags.length,
      ...(lags.length === 0
        ? {}
        : {
            "async/staleness_mean": mean(lags),
            "async/staleness_min": Math.min(...lags),
            "async/staleness_max": Math.max(...lags),
          }),
    },
  };
}

function hasSignal(run: Run, { episodes, greedy }: TaskResult): boolean {
  return groupsWithSignal(toDraw(run, episodes, greedy).groups).length > 0;
}

/** Draw by draw: a task that comes up in several draws is several tasks. */
function gatherInOrder(run: Run, taken: readonly TaskResult[]): Gathered {
  const ordered = [...taken].sort((left, right) => left.number - right.number);
  const draws = new Map<number, TaskResult[]>();
  for (const result of ordered) draws.set(result.draw, [...(draws.get(result.draw) ?? []), result]);
  return [...draws.values()].reduce<Gathered>((gathered, results) => {
    const greedy = results.flatMap((result) => result.greedy ?? []);
    const episodes = results.flatMap((result) => result.episodes);
    return gather(gathered, toDraw(run, episodes, results[0]!.greedy === undefined ? undefined : greedy));
  }, nothingGathered);
}
