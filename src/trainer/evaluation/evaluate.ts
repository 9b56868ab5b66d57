/** `hone eval`: measures models one after another on the same tasks, keeps every outcome and compares them. */
import { existsSync, readdirSync, realpathSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import type { Config } from "../../config/schema.ts";
import { RunError, UserError } from "../../errors.ts";
import { writeWhole } from "../../files/durable-files.ts";
import { makeFolder } from "../../files/make-folder.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import { makeDatedFolder } from "../../tracking/run-folder/run-folder.ts";
import { lastStep } from "../../trajectories/last-step.ts";
import { sampledTokens } from "../../trajectories/metrics.ts";
import type { Episode } from "../../trajectories/types.ts";
import { openCheckpoint, savedConfigFile } from "../checkpoints/open-checkpoint.ts";
import type { EvaluationRequest } from "../launch.ts";
import { type Attempt, compareAttempts, summarizeAttempts } from "./attempts.ts";
import { type Evaluation, report } from "./report.ts";
import { verdictOf } from "./validate.ts";

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
