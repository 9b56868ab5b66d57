/** Measures the published policy on the validation tasks. */
import type { Dataset } from "../data/types.ts";
import { mean } from "../statistics.ts";
import type { Episode } from "../trajectories/types.ts";
import { collectEpisodes } from "./collect-episodes.ts";
import { watchOutage } from "./failing-rollouts.ts";
import { keepEpisodes } from "./keep-episodes.ts";
import type { Run } from "./run.ts";

/**
 * Validates after `step` (0: before training). The metrics go to `run.validation`. Returns all episodes, task by task.
 *
 * @param stops false: the caller reports it when all rollouts fail
 * @throws RunError when all rollouts fail
 */
export async function validate(run: Run, step: number, stops = true): Promise<Episode[]> {
  const { validation } = run.experiment;
  if (!validation) return [];
  const start = performance.now();
  run.emit({ type: "validation-start", step });
  const outage = watchOutage(run, stops);
  let episodes: Episode[];
  do {
    episodes = await collectValidation(run, validation, step);
  } while (await outage.lasts({ mode: "val", step }, episodes));
  const metrics = validationMetrics(episodes, validation.name, run.config.rllm.rollout.n_val);
  const seconds = (performance.now() - start) / 1000;
  keepEpisodes(run, { mode: "val", step }, episodes);
  checkBestMetric(run, metrics);
  run.validation = { step, metrics };
  run.emit({ type: "validation-end", step, metrics, seconds });
  return episodes;
}

async function collectValidation(run: Run, validation: Dataset<unknown>, step: number): Promise<Episode[]> {
  const episodes: Episode[] = [];
  const { val_batch_size } = run.config.data;
  const atOnce = val_batch_size === -1 ? validation.size : val_batch_size;
  for (let first = 0; first < validation.size; first += atOnce) {
    const count = Math.min(atOnce, validation.size - first);
    const tasks = Array.from({ length: count }, (_, index) => validation.task(first + index));
    const { n_val: rollouts } = run.config.rllm.rollout;
    const sampling = run.config.rllm.rollout.val;
    episodes.push(...(await collectEpisodes(run, { purpose: "validate", tasks, rollouts, sampling, step })));
  }
  return episodes;
}

/** A name that no validation has would never find a best checkpoint. */
function checkBestMetric({ config, emit }: Run, metrics: Readonly<Record<string, number>>): void {
  const { best_metric: name } = config.training;
  if (Object.hasOwn(metrics, name) || !("val/reward" in metrics)) return;
  const text = `training.best_metric=${name} is not a metric of this validation, which has ${Object.keys(metrics).join(", ")}`;
  emit({ type: "warning", text: `${text}; no checkpoint counts as the best` });
}

/**
 * `val/reward` and `val/{source}/reward` (mean over episodes with a known reward), `val/{source}/pass@1` (share of the
 * episodes that solved their task) and `pass@n` (share of the tasks that any of their n rollouts solved), and how many
 * outcomes are unknown. An episode without a verdict of its own counts as solved from a reward of 1.
 */
function validationMetrics(episodes: readonly Episode[], source: string, n: number): Record<string, number> {
  const graded = episodes.flatMap((episode) => {
    const { reward, solved } = verdictOf(episode);
    return reward === null ? [] : [{ taskId: episode.taskId, reward, solved }];
  });
  const unknown = { "val/unknown": episodes.length - graded.length };
  if (graded.length === 0) return unknown;
  const tasks = solvedByTask(graded);
  const reward = mean(graded.map((episode) => episode.reward));
  return {
    "val/reward": reward,
    [`val/${source}/reward`]: reward,
    [`val/${source}/pass@1`]: mean(graded.map(({ solved }) => Number(solved))),
    ...(n > 1
      ? { [`val/${source}/pass@${n}`]: mean([...tasks.values()].map((all) => Number(all.includes(true)))) }
      : {}),
    ...unknown,
  };
}

/** The reward of an episode, null where it is unknown, and whether its task counts as solved. */
export function verdictOf({ trajectories, correct }: Episode): { reward: number | null; solved: boolean } {
  const reward = trajectories[0]?.reward ?? null;
  return { reward, solved: reward !== null && (correct ?? reward >= 1) };
}

function solvedByTask(graded: readonly { taskId: string; solved: boolean }[]): Map<string, boolean[]> {
  const tasks = new Map<string, boolean[]>();
  for (const { taskId, solved } of graded) tasks.set(taskId, [...(tasks.get(taskId) ?? []), solved]);
  return tasks;
}
