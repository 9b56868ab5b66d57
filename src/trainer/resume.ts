/**
 * Continues a run or starts from a checkpoint: finds it, verifies it, and restores weights and progress.
 *
 * Metrics and episodes of later steps move to `metrics.discarded.jsonl` and `episodes/discarded/`, and those steps run again; without a
 * checkpoint the run starts over in the same folder. A resumed run equals an uninterrupted one exactly on the same machine. In bfloat16
 * this also requires that the model calls of a step arrive together, as in single-turn workflows.
 */
import { existsSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { backendHolding } from "../backends/backends.ts";
import { UserError } from "../base/errors.ts";
import { withInside } from "../base/files.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { valueAt } from "../config/tree.ts";
import type { RunEvent } from "../tracking/events.ts";
import { newestRun } from "../tracking/run-folder.ts";
import { bestCheckpoint, type Checkpoint, forgetCheckpoint, latestCheckpoint, readCheckpoint } from "./checkpoints.ts";
import type { Models, Progress } from "./state.ts";

// Finds a checkpoint by its own folder, its run's folder, or a link to one of them.

export interface OpenCheckpoint {
  folder: string;
  step: number;
  config: Config;
  composed: ComposedConfig;
}

function printWarning(text: string): void {
  process.stderr.write(`warning: ${text}\n`);
}

const missingRun = (path: string) => new UserError(`the run folder ${path} does not exist`, { hint: newestRun() });

/**
 * @param path a checkpoint folder; a run folder, for its newest complete checkpoint; `{run folder}/best`, or `best` for
 * the best checkpoint of runs/latest
 * @throws UserError if there is no checkpoint at `path`; RunError if all are damaged
 */
export async function openCheckpoint(path: string): Promise<OpenCheckpoint> {
  const found = await findCheckpoint(path);
  const composed = composeConfig({ input: found.state.config as never });
  return { folder: found.path, step: found.step, config: composed.config, composed };
}

/**
 * The same without its configuration.
 *
 * @param warn reports damaged checkpoints that are skipped, and those that cannot be checked
 */
export async function findCheckpoint(path: string, warn = printWarning): Promise<Checkpoint> {
  const folder = (await namedBest(path)) ?? resolve(path);
  if (!existsSync(folder)) {
    throw new UserError(`the folder ${path} does not exist`, { hint: newestRun() });
  }
  const inRun = join(folder, "checkpoints");
  const found = existsSync(inRun) ? await latestCheckpoint(inRun, warn) : await readCheckpoint(folder, warn);
  if (found) return found;
  throw new UserError(`${path} has no checkpoint so far`, {
    hint: "a run saves one every rllm.trainer.save_freq steps",
  });
}

/** The folder of a run's best checkpoint, if `path` names it. A real folder named best has precedence. */
async function namedBest(path: string): Promise<string | undefined> {
  if (basename(path) !== "best" || existsSync(path)) return undefined;
  const run = path === "best" ? join("runs", "latest") : dirname(path);
  const inRun = join(run, "checkpoints");
  if (!existsSync(inRun)) throw missingRun(run);
  const best = await bestCheckpoint(inRun);
  if (best !== undefined) return best.path;
  throw new UserError(`${run} has no best checkpoint: none was saved at the step of a validation`, {
    hint: "training.keep_best=true saves a checkpoint at every new best validation",
  });
}

/**
 * The config.yaml of a run folder.
 * @throws UserError if there is no such run, or the file is not a regular one
 */
export function savedConfigFile(folder: string): string {
  if (!existsSync(folder)) throw missingRun(folder);
  // A run folder may come from someone else.
  if (withInside(folder, "config.yaml", () => true)) return join(folder, "config.yaml");
  throw new UserError(`${folder} is not a run folder: config.yaml is missing`, {
    hint: "name the folder of a run, such as runs/latest, not one of its checkpoints",
  });
}

// Decides how a run starts: from scratch, from given weights, or from a checkpoint of the same run.

/** `service`: a checkpoint that a service of the backend holds, which counts no steps. */
export type ResumeOptions = { mode: "off" } | { mode: "auto" } | { mode: "path" | "service"; path: string };

export function resumeOptions({ training }: Config): ResumeOptions {
  const { resume_mode: mode, resume_from_path: path } = training;
  if (mode !== "path") return { mode };
  // Only a run that measures has no path.
  if (path === null) return { mode: "off" };
  return { mode: backendHolding(path) === undefined ? "path" : "service", path };
}

/**
 * @param weights a checkpoint to take only the weights of
 * @throws UserError if a checkpoint that the run starts from does not exist
 */
export async function requireCheckpoint(options: ResumeOptions, weights: string | undefined): Promise<void> {
  // Damaged checkpoints are reported when the run begins.
  if (options.mode === "path") await findCheckpoint(options.path, () => {});
  if (weights !== undefined) await findCheckpoint(weights, () => {});
}

export interface RestoreParts {
  models: Pick<Models, "sampler" | "learner" | "critic">;
  /** The run's checkpoints; undefined if the run only measures. */
  checkpoints: string | undefined;
  /** Whether the run trains, and so may have a critic. */
  trains: boolean;
  storedConfig: Readonly<Record<string, unknown>>;
  emit(event: RunEvent): void;
}

/**
 * Loads the weights that the options name, or those of another checkpoint. A run folder without a checkpoint starts over:
 * every draw derives from the step, so it repeats what was lost.
 *
 * @param weights a checkpoint to take only the weights of
 * @returns the progress of the checkpoint that the run continues; undefined: the run begins with step 1
 */
export async function restore(
  parts: RestoreParts,
  options: ResumeOptions,
  weights: string | undefined,
): Promise<Progress | undefined> {
  const { sampler, learner } = parts.models;
  const warn = (text: string) => parts.emit({ type: "warning", text });
  if (options.mode === "service") {
    await sampler.load(await learner.loadState(options.path, { optimizer: true }));
    warn(`weights and optimizer are those of ${options.path}; steps are counted from 1`);
    return undefined;
  }
  const checkpoint = await chosenCheckpoint(parts, options);
  if (checkpoint) {
    await sampler.load(await learner.loadState(join(checkpoint.path, "policy"), { optimizer: true }));
    await restoreCritic(parts, checkpoint.path, true);
    const progress = checkpoint.state.progress as (Omit<Progress, "draws"> & { draws?: number }) | undefined | null;
    if (!Number.isInteger(progress?.step) || !progress) {
      throw new UserError(`the checkpoint ${checkpoint.path} is damaged: state.progress has no step`, {
        hint: "remove its folder; the run then continues from an older checkpoint",
      });
    }
    warnOfChanges(parts.storedConfig, checkpoint, warn);
    // In checkpoints of earlier versions, each step was one draw.
    return { draws: progress.step, ...progress };
  }
  if (weights !== undefined) {
    const { path } = await findCheckpoint(weights, warn);
    await sampler.load(await learner.loadState(join(path, "policy"), { optimizer: false }));
    await restoreCritic(parts, path, false);
  }
  return undefined;
}

async function chosenCheckpoint(parts: RestoreParts, options: ResumeOptions): Promise<Checkpoint | undefined> {
  const { checkpoints, emit } = parts;
  const warn = (text: string) => emit({ type: "warning", text });
  if (checkpoints === undefined || options.mode === "off") return undefined;
  if (options.mode === "auto") return latestCheckpoint(checkpoints, warn, forgetCheckpoint(parts));
  return findCheckpoint(options.path, warn);
}

/** The reference is the model before training: with `training.start_from`, the weights that the run starts from. */
export async function restoreReference(
  reference: Models["reference"],
  { rllm: { algorithm } }: Config,
  startFrom: string,
  warn: (text: string) => void,
): Promise<void> {
  if (!reference || algorithm.reference_model !== null) return;
  const { path } = await findCheckpoint(startFrom, warn);
  await reference.loadState(join(path, "policy"), { optimizer: false });
}

/** A run with a critic may continue from a checkpoint without one, and vice versa. */
async function restoreCritic({ models: { critic }, trains, emit }: RestoreParts, path: string, optimizer: boolean) {
  if (!trains) return;
  const saved = join(path, "critic");
  if (critic && existsSync(saved)) await critic.loadState(saved, { optimizer });
  else if (critic) emit({ type: "warning", text: "the checkpoint has no critic: the critic starts fresh" });
  else if (existsSync(saved)) {
    emit({ type: "warning", text: "the checkpoint's critic is not used: no estimator needs a critic" });
  }
}

/** Settings that change which tasks and draws the remaining steps see. */
const drawKeys = [
  "data.train_batch_size",
  "rllm.async_training.enable",
  "rllm.async_training.mini_batch_size",
  "data.shuffle",
  "rllm.trainer.seed",
  "rllm.rollout.n",
  "rllm.rejection_sample.multiplier",
];

function warnOfChanges(
  storedConfig: RestoreParts["storedConfig"],
  { state }: Checkpoint,
  warn: (text: string) => void,
): void {
  for (const key of drawKeys) {
    const before = valueAt(state.config as object, key);
    const now = valueAt(storedConfig, key);
    if (before === now) continue;
    warn(`${key} was ${before} in the checkpoint and is ${now} now: the run continues with different random draws`);
  }
}
