/** What a score says about an experiment: its reward, whether rewards differ within tasks, what it costs. Pure. */
import { relative } from "node:path";
import { append } from "../append.ts";
import { textOf } from "../chat/images/content.ts";
import { mean, standardDeviation } from "../statistics.ts";
import { formatNumber } from "../tracking/numbers.ts";
import { type AttemptSummary, summarizeAttempts } from "../trainer/evaluation/attempts.ts";
import { verdictOf } from "../trainer/evaluation/validate.ts";
import { lastStep } from "../trajectories/last-step.ts";
import { workflowMetrics } from "../trajectories/metrics.ts";
import type { Episode } from "../trajectories/types.ts";

interface Usage {
  calls: number;
  retries: number;
  /** Tokens, as the provider counts them. */
  input: number;
  output: number;
  /** Replies that are longer than `data.max_response_length`. */
  overlong: number;
}

export interface Score extends AttemptSummary {
  model: string;
  /** Absolute. */
  folder: string;
  /** Tasks by how their known rewards spread: only those that differ teach an algorithm that compares rollouts. */
  differing: number;
  same: number;
  /** Mean over tasks of the standard deviation of their rewards. */
  spread: number;
  /** How many rollouts have no reward, by the reason. */
  failures: Record<string, number>;
  usage: Usage;
  /** Why only some of the rollouts ran. */
  stopped: string | null;
  /** Dollars; null without prices. */
  cost: number | null;
  best: Excerpt[];
  worst: Excerpt[];
  metrics: Record<string, number>;
}

interface Excerpt {
  id: string;
  reward: number;
  prompt: string;
  reply: string;
  reason: string | null;
}

export function summarizeScore(
  episodes: readonly Episode[],
  {
    usage,
    stopped,
    price,
    model,
    folder,
  }: Pick<Score, "usage" | "stopped" | "model" | "folder"> & { price: { input: number; output: number } | undefined },
): Score {
  const attempts = episodes.map((episode) => ({ task: episode.taskId, tokens: 0, ...verdictOf(episode) }));
  const known = episodes.flatMap((episode) => {
    const { reward } = verdictOf(episode);
    return reward === null ? [] : [{ episode, reward }];
  });
  const byTask = new Map<string, number[]>();
  for (const { episode, reward } of known) append(byTask, episode.taskId, reward);
  const deviations = [...byTask.values()].filter((all) => all.length > 1).map((all) => standardDeviation(all));
  const differing = deviations.filter((one) => one > 1e-9).length;
  const failures: Record<string, number> = {};
  for (const episode of episodes) {
    const { failure, explanation } = episode;
    if (failure === undefined && verdictOf(episode).reward !== null) continue;
    const why = failure?.message ?? `the reward is unknown${explanation ? `: ${explanation}` : ""}`;
    failures[why] = (failures[why] ?? 0) + 1;
  }
  const sorted = known.toSorted((left, right) => right.reward - left.reward);
  const spread = deviations.length === 0 ? 0 : mean(deviations);
  const cost = price === undefined ? null : (usage.input * price.input + usage.output * price.output) / 1e6;
  return {
    ...summarizeAttempts(attempts),
    ...{ model, folder, differing, same: deviations.length - differing, spread, failures, usage, stopped, cost },
    best: ofTwoTasks(sorted).map(excerpt),
    worst: ofTwoTasks(sorted.toReversed()).map(excerpt),
    metrics: {
      "score/tasks_with_different_rewards": differing,
      "score/reward_std_within_task": spread,
      "score/calls": usage.calls,
      "score/input_tokens": usage.input,
      "score/output_tokens": usage.output,
      ...(cost === null ? {} : { "score/cost": cost }),
      ...workflowMetrics(episodes),
    },
  };
}

/** The first, and the first of another task. */
function ofTwoTasks<Graded extends { episode: Episode }>(graded: readonly Graded[]): Graded[] {
  const [first] = graded;
  const other = graded.find(({ episode }) => episode.taskId !== first?.episode.taskId);
  return [first, other].filter((one) => one !== undefined);
}

function excerpt({ episode, reward }: { episode: Episode; reward: number }): Excerpt {
  const { text = "", messages = [] } = lastStep(episode.trajectories) ?? {};
  const asked = messages.findLast(({ role }) => role === "user")?.content ?? "";
  return {
    ...{ id: episode.id, reward, reply: text, reason: episode.explanation ?? null },
    prompt: textOf(asked),
  };
}

const shownMetrics = 20;

export function reportScore(score: Score): string[] {
  const path = relative(process.cwd(), score.folder) || score.folder;
  return [...describeScore(score), "", `the run is in ${path}; npx hone-rl view ${path} shows every reply`];
}

/** The report as the run folder keeps it. */
export function describeScore(score: Score): string[] {
  const { reward, tasks, rollouts, unknown, model, usage, cost } = score;
  const shown =
    reward === null
      ? "unknown"
      : `${formatNumber(reward.mean)}${reward.standardError === null ? "" : ` ± ${formatNumber(reward.standardError)}`}`;
  const metrics = Object.entries(score.metrics).filter(([name]) => name.startsWith("batch/"));
  const price =
    cost === null
      ? "; --price INPUT,OUTPUT (dollars for a million tokens) shows the cost"
      : `: $${cost.toPrecision(3)}`;
  return [
    "",
    ...(score.stopped === null ? [] : [score.stopped]),
    `${model}: reward ${shown} over ${tasks} tasks, ${rollouts} rollouts${unknown === 0 ? "" : `, of which ${unknown} have no known reward`}`,
    ...metrics
      .slice(0, shownMetrics)
      .map(([name, value]) => `  ${shorten(name.slice("batch/".length))} ${formatNumber(value)}`),
    ...(metrics.length > shownMetrics ? [`  and ${metrics.length - shownMetrics} other metrics`] : []),
    signal(score),
    `${usage.calls} calls of the model, ${usage.input} input and ${usage.output} output tokens${price}`,
    ...(usage.overlong === 0
      ? []
      : [`${usage.overlong} replies are longer than data.max_response_length, at which training cuts them off`]),
    ...Object.entries(score.failures)
      .slice(0, 5)
      .map(([message, count]) => `failed ${count}x: ${shorten(message)}`),
    ...score.best.flatMap((one) => show("best", one)),
    ...score.worst.flatMap((one) => show("worst", one)),
  ];
}

/** Whether algorithms that compare the rollouts of a task can learn from these rewards. */
function signal({ differing, same, spread, reward, unknown, rollouts }: Score): string {
  const compared = differing + same;
  if (reward === null) return "no reward is known: fix the reward first";
  if (compared === 0) return "no task has two known rewards, so nothing can be compared: use --rollouts 4";
  const share = `${differing} of ${compared} tasks have rewards that differ (standard deviation within a task: ${formatNumber(spread)})`;
  if (differing > 0) {
    const worth =
      differing / compared >= 0.25
        ? "there is something to learn from"
        : "little to learn from: most tasks are too easy or too hard for this model";
    return `${share}: ${worth}${unknown / rollouts > 0.2 ? "; but many rewards are unknown" : ""}`;
  }
  if (reward.mean >= 1 - 1e-9)
    return `${share}: every reply gets the full reward; use harder tasks, or a stricter reward`;
  return `${share}: nothing to learn from; give partial credit, or easier tasks`;
}

const show = (what: string, { id, reward, prompt, reply, reason }: Excerpt): string[] => [
  "",
  `${what}: ${formatNumber(reward)}  ${id}${reason === null ? "" : `  (${shorten(reason)})`}`,
  `  > ${shorten(prompt)}`,
  `  < ${shorten(reply)}`,
];

function shorten(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= 200 ? line : `${line.slice(0, 120)} ... ${line.slice(-70)}`;
}
