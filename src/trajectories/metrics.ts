/** Metrics of a batch: how many tasks were solved, how episodes ended, how long replies were; rewards and advantages. */
import { append } from "../append.ts";
import { mean, percentile, spread, standardDeviation } from "../statistics.ts";
import { type Episode, failureKinds, lengthLimits, type TrajectoryGroup, terminationReasons } from "./types.ts";

/**
 * `batch/num_tasks`, `batch/solve_{none,all,partial}` (shares of the tasks whose outcome is known),
 * `batch/termination_reason/*` (shares of the episodes), `batch/num_episodes`, `batch/failed_episodes` (how many failed),
 * `batch/failed_episodes_rewarded` (how many of those have a reward, see `rllm.workflow.on_agent_error`),
 * `batch/failures/{kind}` and `batch/retries/{kind}` (failed episodes, and retried attempts), `batch/{name}` for each metric
 * of a workflow (mean over the episodes that have it), `response_length/*` and `prompt_length/*` over model calls.
 * `response_length/clip_ratio` is the share of replies that a limit cut off, `response_length/cut_off_by/*` the share that
 * each limit cut off.
 */
export function episodeMetrics(episodes: readonly Episode[]): Record<string, number> {
  return {
    ...solveMetrics(episodes),
    ...terminationMetrics(episodes),
    ...workflowMetrics(episodes),
    ...lengthMetrics(episodes),
  };
}

/** Number of tokens that were sampled in an episode. */
export function sampledTokens({ trajectories }: Episode): number {
  return trajectories.flatMap(({ steps }) => steps).reduce((sum, { tokens }) => sum + tokens.length, 0);
}

function solveMetrics(episodes: readonly Episode[]): Record<string, number> {
  const outcomes = new Map<string, boolean[]>();
  for (const { taskId, correct } of episodes) {
    if (correct !== null) append(outcomes, taskId, correct);
  }
  const tasks = [...outcomes.values()];
  const share = (test: (known: boolean[]) => boolean) => tasks.filter(test).length / tasks.length;
  const numTasks = { "batch/num_tasks": new Set(episodes.map(({ taskId }) => taskId)).size };
  if (tasks.length === 0) return numTasks;
  return {
    ...numTasks,
    "batch/solve_none": share((known) => !known.includes(true)),
    "batch/solve_all": share((known) => !known.includes(false)),
    "batch/solve_partial": share((known) => known.includes(true) && known.includes(false)),
  };
}

function terminationMetrics(episodes: readonly Episode[]): Record<string, number> {
  if (episodes.length === 0) return {};
  const shares = terminationReasons.map((reason) => [
    `batch/termination_reason/${reason}`,
    episodes.filter(({ termination }) => termination === reason).length / episodes.length,
  ]);
  return {
    ...Object.fromEntries(shares),
    ...failureMetrics(episodes),
  };
}

function failureMetrics(episodes: readonly Episode[]): Record<string, number> {
  const failed = episodes.filter(({ failure }) => failure !== undefined);
  const retriedAfter = episodes.flatMap((episode) => episode.retriedAfter ?? []);
  const byKind = failureKinds.flatMap((kind) => [
    [`batch/failures/${kind}`, failed.filter(({ failure }) => failure?.kind === kind).length],
    [`batch/retries/${kind}`, retriedAfter.filter((failure) => failure.kind === kind).length],
  ]);
  return {
    "batch/num_episodes": episodes.length,
    "batch/failed_episodes": failed.length,
    "batch/failed_episodes_rewarded": failed.filter(isRewarded).length,
    "batch/retries": episodes.reduce((total, { retries }) => total + retries, 0),
    ...Object.fromEntries(byKind),
  };
}

const isRewarded = ({ trajectories }: Episode) => trajectories.some(({ reward }) => reward !== null);

export function workflowMetrics(episodes: readonly Episode[]): Record<string, number> {
  const values = new Map<string, number[]>();
  for (const { metrics } of episodes) {
    for (const [name, value] of Object.entries(metrics)) append(values, name, value);
  }
  return Object.fromEntries(Array.from(values, ([name, given]) => [`batch/${name}`, mean(given)]));
}

function lengthMetrics(episodes: readonly Episode[]): Record<string, number> {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((trajectory) => trajectory.steps));
  if (steps.length === 0) return {};
  return {
    ...spread(
      "response_length",
      steps.map(({ tokens }) => tokens.length),
    ),
    "response_length/clip_ratio": steps.filter(({ stopReason }) => stopReason === "length").length / steps.length,
    ...Object.fromEntries(
      lengthLimits.map((limit) => [
        `response_length/cut_off_by/${limit}`,
        steps.filter(({ cutOffBy }) => cutOffBy === limit).length / steps.length,
      ]),
    ),
    ...spread(
      "prompt_length",
      steps.map(({ promptTokens }) => promptTokens.length),
    ),
  };
}

/** Smaller advantages and deviations count as zero. */
const negligible = 1e-8;

/** `reward/{role}/*` over trajectories; `batch/{role}/*` over the groups of two or more. */
export function rewardMetrics(groups: readonly TrajectoryGroup[]): Record<string, number> {
  const rewards = groups.map(({ members }) => members.map(({ reward }) => reward));
  return byRole(groups, rewards, (role, own) => ({
    ...describe(`reward/${role}`, own.flat()),
    ...signalMetrics(
      `batch/${role}`,
      own.filter(({ length }) => length >= 2),
    ),
  }));
}

/**
 * `advantage/{role}/*` over trajectories.
 *
 * @param advantages `[groups][members]`
 */
export function advantageMetrics(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): Record<string, number> {
  return byRole(groups, advantages, (role, own) => {
    const flat = own.flat().filter(Number.isFinite);
    if (flat.length === 0) return {};
    const zero = flat.filter((value) => Math.abs(value) < negligible).length;
    return { ...describe(`advantage/${role}`, flat), [`advantage/${role}/fraction_zero`]: zero / flat.length };
  });
}

function byRole(
  groups: readonly TrajectoryGroup[],
  values: readonly (readonly number[])[],
  metrics: (role: string, own: readonly (readonly number[])[]) => Record<string, number>,
): Record<string, number> {
  const roles = [...new Set(groups.map(({ role }) => role))];
  const valuesOf = (role: string) => values.filter((_, index) => groups[index]?.role === role);
  return Object.assign({}, ...roles.map((role) => metrics(role, valuesOf(role))));
}

function describe(name: string, values: readonly number[]): Record<string, number> {
  return { ...spread(name, values), [`${name}/std`]: standardDeviation(values) };
}

/** The shares of groups with a signal, and of those without: all rollouts solved the task, or none did. */
function signalMetrics(name: string, groups: readonly (readonly number[])[]): Record<string, number> {
  if (groups.length === 0) return {};
  const means = groups.map(mean);
  const deviations = groups.map((rewards) => standardDeviation(rewards));
  const uniform = means.filter((_, index) => Number(deviations[index]) < negligible);
  const percentiles = [10, 50, 90].flatMap((rank) => [
    [`${name}/group_reward_mean/p${rank}`, percentile(means, rank)],
    [`${name}/group_reward_std/p${rank}`, percentile(deviations, rank)],
  ]);
  return {
    [`${name}/total`]: groups.length,
    [`${name}/informative`]: groups.length - uniform.length,
    [`${name}/fractions/effective`]: 1 - uniform.length / groups.length,
    [`${name}/fractions/too_easy`]: uniform.filter((reward) => reward >= 1).length / groups.length,
    [`${name}/fractions/too_hard`]: uniform.filter((reward) => reward <= 0).length / groups.length,
    ...Object.fromEntries(percentiles),
  };
}
