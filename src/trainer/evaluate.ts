/** `hone eval`: measures candidates on the same tasks, summarizes them, compares them and keeps the results. */
import { existsSync, readdirSync, realpathSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { RunError, UserError } from "../base/errors.ts";
import { makeFolder, writeWhole } from "../base/files.ts";
import { append, mean, standardDeviation } from "../base/values.ts";
import type { Config } from "../config/schema.ts";
import { formatNumber } from "../tracking/events.ts";
import { toJson } from "../tracking/json-lines.ts";
import { makeDatedFolder } from "../tracking/run-folder.ts";
import { type Episode, lastStep } from "../trajectories/types.ts";
import type { EvaluationRequest } from "./experiment.ts";
import { sampledTokens } from "./record.ts";
import { openCheckpoint, savedConfigFile } from "./resume.ts";
import { verdictOf } from "./validate.ts";

// Summarizes the rewards of a model, and compares two models on the same tasks. Pure.

/** One rollout's outcome. */
export interface Attempt {
  task: string;
  /** null: unknown, counted and left out of every mean. */
  reward: number | null;
  solved: boolean;
  /** Sampled in all its model calls. */
  tokens: number;
}

/** A mean with its standard error over tasks and its 95% confidence interval (Student's t). */
interface Estimate {
  mean: number;
  /** null where there are fewer than two tasks. */
  standardError: number | null;
  interval: [low: number, high: number] | null;
}

export interface AttemptSummary {
  tasks: number;
  rollouts: number;
  /** Rollouts without a known reward. */
  unknown: number;
  /** Over the rollouts whose reward is known; null where there is none. */
  reward: Estimate | null;
  /** Share of the tasks that at least one of k rollouts solves, by k. */
  passAt: Record<string, number>;
  meanTokens: number;
}

export function summarizeAttempts(attempts: readonly Attempt[]): AttemptSummary {
  const tasks = [...byTask(attempts).values()];
  const known = attempts.filter(isKnown);
  const knownByTask = [...byTask(known).values()];
  const rollouts = tasks.reduce((most, all) => Math.max(most, all.length), 0);
  const solved = (all: readonly Attempt[]) => all.filter((one) => one.solved).length;
  return {
    tasks: tasks.length,
    rollouts: attempts.length,
    unknown: attempts.length - known.length,
    reward: known.length === 0 ? null : clusteredMean(knownByTask),
    passAt: Object.fromEntries(
      passCounts(rollouts).flatMap((k) => {
        const enough = knownByTask.filter((all) => all.length >= k);
        const shares = enough.map((all) => passAtK(all.length, solved(all), k));
        return shares.length === 0 ? [] : [[k, mean(shares)]];
      }),
    ),
    meanTokens: mean(attempts.map(({ tokens }) => tokens)),
  };
}

export interface Comparison {
  /** Tasks whose reward is known in both. */
  tasks: number;
  /** The second's reward minus the first's, task by task. */
  difference: Estimate;
  wins: number;
  losses: number;
  ties: number;
  /** Two-sided p-value of the exact sign test over wins and losses. */
  signTest: number;
}

/** `second` against `first`, paired by task; null where no task's reward is known in both. */
export function compareAttempts(first: readonly Attempt[], second: readonly Attempt[]): Comparison | null {
  const before = taskMeans(first);
  const differences = [...taskMeans(second)].flatMap(([task, reward]) => {
    const earlier = before.get(task);
    return earlier === undefined ? [] : [reward - earlier];
  });
  if (differences.length === 0) return null;
  const wins = differences.filter((one) => one > 0).length;
  const losses = differences.filter((one) => one < 0).length;
  const error = standardDeviation(differences, 1) / Math.sqrt(differences.length);
  return {
    tasks: differences.length,
    difference: estimate(mean(differences), error, differences.length),
    wins,
    losses,
    ties: differences.length - wins - losses,
    signTest: signTest(wins, losses),
  };
}

/** The probability that k of n rollouts, drawn without replacement, include one of the c that solved the task. */
export function passAtK(n: number, c: number, k: number): number {
  let none = 1;
  for (let size = n - c + 1; size <= n; size++) none *= 1 - k / size;
  return n - c < k ? 1 : 1 - none;
}

/** The probability of a split at least this uneven if wins and losses were equally likely. */
export function signTest(wins: number, losses: number): number {
  const n = wins + losses;
  let logarithm = -n * Math.LN2;
  let tail = 0;
  for (let count = 0; count <= Math.min(wins, losses); count++) {
    tail += Math.exp(logarithm);
    logarithm += Math.log((n - count) / (count + 1));
  }
  return Math.min(1, 2 * tail);
}

/** Rollouts of one task are not independent: the standard error is over tasks. */
function clusteredMean(tasks: readonly (readonly KnownAttempt[])[]): Estimate {
  const rewards = tasks.flat().map(({ reward }) => reward);
  const center = mean(rewards);
  const deviations = tasks.map((task) => task.reduce((sum, { reward }) => sum + reward - center, 0));
  const squares = deviations.reduce((sum, one) => sum + one ** 2, 0);
  const error = Math.sqrt((squares * tasks.length) / (tasks.length - 1)) / rewards.length;
  return estimate(center, error, tasks.length);
}

function estimate(center: number, error: number, tasks: number): Estimate {
  if (tasks < 2) return { mean: center, standardError: null, interval: null };
  const reach = studentQuantile(tasks - 1) * error;
  return { mean: center, standardError: error, interval: [center - reach, center + reach] };
}

/** The 97.5% quantile of Student's t; from 3 degrees of freedom by the expansion around the normal one, within 0.2%. */
export function studentQuantile(degrees: number): number {
  const [z, terms] = [1.959964, [2.372271, 2.822501, 2.55585, 1.589536]];
  if (degrees < 3) return degrees === 1 ? 12.7062 : 4.302653;
  return terms.reduce((sum, term, index) => sum + term / degrees ** (index + 1), z);
}

type KnownAttempt = Attempt & { reward: number };
const isKnown = (attempt: Attempt): attempt is KnownAttempt => attempt.reward !== null;

const taskMeans = (attempts: readonly Attempt[]) =>
  new Map(
    [...byTask(attempts.filter(isKnown))].map(([task, all]) => [task, mean(all.map(({ reward }) => reward))] as const),
  );

function byTask<T extends Attempt>(attempts: readonly T[]): Map<string, T[]> {
  const tasks = new Map<string, T[]>();
  for (const attempt of attempts) append(tasks, attempt.task, attempt);
  return tasks;
}

/** 1, 2, 4, ... and n itself. */
function passCounts(n: number): number[] {
  const counts: number[] = [];
  for (let k = 1; k < n; k *= 2) counts.push(k);
  return n > 0 ? [...counts, n] : [];
}

// An evaluation as a table and a sentence for each comparison. Pure text.

export interface Evaluation {
  /** Absolute. */
  folder: string;
  models: (AttemptSummary & { name: string; checkpoint: string | null; step: number })[];
  /** Compares each later model with the first. */
  comparisons: (Comparison & { model: string; against: string })[];
}

function report({ folder, models, comparisons }: Evaluation): string[] {
  const ks = [...new Set(models.flatMap(({ passAt }) => Object.keys(passAt)))];
  const head = ["", "tasks", "rollouts", "reward", ...ks.map((k) => `pass@${k}`), "tokens", "unknown"];
  const rows = models.map(({ name, tasks, rollouts, reward, passAt, meanTokens, unknown }) => [
    name,
    ...[tasks, rollouts].map(String),
    reward === null ? "unknown" : withError(reward),
    ...ks.map((k) => (passAt[k] === undefined ? "" : formatNumber(passAt[k]))),
    meanTokens.toFixed(1),
    String(unknown),
  ]);
  return [
    "",
    ...table(
      models.every(({ unknown }) => unknown === 0) ? [head, ...rows].map((row) => row.slice(0, -1)) : [head, ...rows],
    ),
    "reward: mean ± standard error over tasks",
    ...comparisons.flatMap(({ model, against, tasks, difference, wins, losses, ties, signTest }) => [
      "",
      `${model} against ${against}, on ${tasks} tasks: ${difference.mean < 0 ? "" : "+"}${withError(difference)}${interval(difference)}`,
      `better on ${wins}, worse on ${losses}, equal on ${ties}; sign test: p = ${formatProbability(signTest)}`,
    ]),
    "",
    `results: ${relative(process.cwd(), folder) || folder} (summary.json; tasks.jsonl of each model)`,
  ];
}

const withError = ({ mean, standardError }: Estimate) =>
  standardError === null ? formatNumber(mean) : `${formatNumber(mean)} ± ${formatNumber(standardError)}`;

const interval = ({ interval: found }: Estimate) =>
  found === null ? "" : ` (95%: ${found.map((value) => formatNumber(value)).join(" to ")})`;

const formatProbability = (value: number) => (value < 0.001 ? value.toExponential(0) : value.toFixed(3));

/** Columns of equal width, numbers to the right. */
function table(rows: readonly (readonly string[])[]): string[] {
  const width = (column: number) => Math.max(...rows.map((row) => row[column]?.length ?? 0));
  return rows.map((row) =>
    row.map((cell, column) => (column === 0 ? cell.padEnd(width(0)) : cell.padStart(width(column)))).join("  "),
  );
}

// `hone eval`: measures models one after another on the same tasks, keeps every outcome and compares them.

/** A model with its settings, ready to be measured. */
export interface Measurement {
  config: Config;
  /** @param results the folder for episodes, configuration and log */
  measure(
    results: string,
    step: number,
  ): Promise<{ episodes: readonly Episode[]; metrics: Readonly<Record<string, number>> }>;
}

interface Candidate {
  /** Also of its folder. */
  name: string;
  checkpoint?: string;
  /** The configuration file of the run that made it: it overrides the script's own, and new settings override it. */
  settings?: string;
  step: number;
}

/**
 * Writes a folder with summary.json and, for each model, a folder with tasks.jsonl and what a
 * run folder has. Prints the comparison.
 *
 * @returns the folder and the validation metrics of the last model
 * @throws UserError when a checkpoint is missing or named twice, or the folder is not empty; RunError when a model has no known reward at all
 */
export async function evaluate(
  { candidates, output, json = false }: EvaluationRequest,
  prepare: (candidate: Pick<Candidate, "checkpoint" | "settings">) => Promise<Measurement>,
): Promise<{ folder: string; validation: Readonly<Record<string, number>> }> {
  if (output !== undefined && existsSync(output) && readdirSync(output).length > 0) {
    throw new UserError(`${output} is not empty`, { hint: "name a folder that does not exist yet" });
  }
  const models = await Promise.all(candidates.map(findCandidate));
  const twice = models.find(({ name }, index) => models.findIndex((one) => one.name === name) !== index);
  if (twice) throw new UserError(`${twice.name} is named twice`, { hint: "name two different checkpoints" });
  // The base model is that of the first run.
  const first = models.find(({ settings }) => settings !== undefined);
  const prepared: ({ model: Candidate } & Measurement)[] = [];
  for (const model of models) {
    const { checkpoint, settings = first?.settings } = model;
    const candidate: Pick<Candidate, "checkpoint" | "settings"> = {};
    if (checkpoint !== undefined) candidate.checkpoint = checkpoint;
    if (settings !== undefined) candidate.settings = settings;
    prepared.push({ model, ...(await prepare(candidate)) });
  }
  for (const text of differentSettings(prepared)) process.stderr.write(`warning: ${text}\n`);

  const experiment = prepared[0]!.config.rllm.trainer.experiment_name;
  const folder = output === undefined ? makeDatedFolder({ project: "eval", experiment }) : resolve(output);
  const measured: MeasuredModel[] = [];
  let validation: Readonly<Record<string, number>> = {};
  for (const { model, measure } of prepared) {
    const results = join(folder, model.name);
    makeFolder(results);
    const { episodes, metrics } = await measure(results, model.step);
    validation = metrics;
    const outcomes = episodes.map(outcomeOf);
    writeWhole(
      join(results, "tasks.jsonl"),
      outcomes.map((outcome) => `${toJson(outcome)}\n`),
    );
    measured.push({ model, attempts: outcomes });
  }
  const summary = summarize(folder, measured);
  writeWhole(join(folder, "summary.json"), [`${JSON.stringify(summary, null, 2)}\n`]);
  process.stdout.write(json ? `${JSON.stringify(summary)}\n` : `${report(summary).join("\n")}\n`);
  const unmeasured = summary.models.find(({ reward }) => reward === null);
  if (unmeasured) {
    throw new RunError(`no rollout of ${unmeasured.name} has a known reward`, {
      hint: `${relative(process.cwd(), join(folder, unmeasured.name, "tasks.jsonl"))} has the reason of each`,
    });
  }
  return { folder, validation };
}

interface MeasuredModel {
  model: Candidate;
  attempts: readonly Attempt[];
}

function summarize(folder: string, measured: readonly MeasuredModel[]): Evaluation {
  const [first, ...others] = measured;
  return {
    folder,
    models: measured.map(({ model: { name, checkpoint = null, step }, attempts }) => ({
      name,
      checkpoint,
      step,
      ...summarizeAttempts(attempts),
    })),
    comparisons: others.flatMap(({ model, attempts }) => {
      const comparison = first && compareAttempts(first.attempts, attempts);
      return comparison ? [{ model: model.name, against: first.model.name, ...comparison }] : [];
    }),
  };
}

async function findCandidate(path: string | null): Promise<Candidate> {
  if (path === null) return { name: "base", step: 0 };
  const { folder, step } = await openCheckpoint(path);
  const checkpoint = realpathSync(folder);
  const run = dirname(dirname(checkpoint));
  const candidate = { name: `${basename(run)}-${basename(checkpoint)}`, checkpoint, step };
  if (existsSync(join(run, "config.yaml"))) return { ...candidate, settings: savedConfigFile(run) };
  process.stderr.write(`warning: ${path} is not in a run's folder: it is measured with the script's own settings\n`);
  return candidate;
}

/** Settings that change what is measured; models measured with different ones do not compare. */
const settings: Record<string, (config: Config) => unknown> = {
  "rllm.rollout.n_val": ({ rllm }) => rllm.rollout.n_val,
  "rllm.rollout.val": ({ rllm }) => rllm.rollout.val,
  "data.max_prompt_length": ({ data }) => data.max_prompt_length,
};

function differentSettings(prepared: readonly Pick<Measurement, "config">[]): string[] {
  return Object.entries(settings).flatMap(([key, read]) => {
    const values = prepared.map(({ config }) => JSON.stringify(read(config)));
    if (values.every((value) => value === values[0])) return [];
    return [
      `${key} differs between the models: ${values.join(", ")}; set it on the command line for a fair comparison`,
    ];
  });
}

/** One line of tasks.jsonl: what a rollout was asked, what it answered and why it got its reward. */
interface Outcome extends Attempt {
  rollout: number;
  /** The task's row, which holds the expected answer where the dataset has one. */
  row: unknown;
  /** The reply of the last model call. */
  reply: string;
  /** The grader's explanation, or the failure. */
  reason: string | null;
  termination: Episode["termination"];
  calls: number;
  seconds: number;
}

function outcomeOf(episode: Episode): Outcome {
  const { taskId: task, rollout, row, termination, seconds, failure, explanation } = episode;
  const steps = episode.trajectories.flatMap((trajectory) => trajectory.steps);
  const failed = failure && `${failure.boundary} failed: ${failure.message}`;
  return {
    task,
    rollout,
    row,
    reply: lastStep(episode.trajectories)?.text ?? "",
    ...verdictOf(episode),
    reason: failed ?? explanation ?? null,
    termination,
    calls: steps.length,
    tokens: sampledTokens(episode),
    seconds,
  };
}
