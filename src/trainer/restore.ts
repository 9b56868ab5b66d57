/** Where a run begins: fresh, from given weights, or where an earlier process left it. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { UserError } from "../errors.ts";
import { isTinkerPath } from "../tinker-protocol/tinker-path.ts";
import { type Checkpoint, latestCheckpoint } from "./checkpoints.ts";
import { findCheckpoint } from "./open-checkpoint.ts";
import type { Progress, Run } from "./run.ts";
import { forgetCheckpoint } from "./save-run.ts";

/**
 * Loads what `training.resume_mode` names and brings the run folder back to that step. A run folder
 * without a checkpoint starts over: every draw derives from the step, so it repeats what was lost.
 *
 * @param weights a checkpoint to take only the weights of
 */
export async function restore(run: Run, weights: string | undefined): Promise<void> {
  const { folder, sampler, learner, progress, health, emit } = run;
  const warn = (text: string) => emit({ type: "warning", text });
  const held = heldByService(run);
  const checkpoint = held === undefined ? await chosenCheckpoint(run) : undefined;
  if (held !== undefined) {
    await sampler.load(await learner.loadState(held, { optimizer: true }));
    warn(`weights and optimizer are those of ${held}; steps are counted from 1`);
  } else if (checkpoint) {
    await sampler.load(await learner.loadState(join(checkpoint.path, "policy"), { optimizer: true }));
    await restoreCritic(run, checkpoint.path, true);
    // Until a step could make several draws, it made one.
    const saved = checkpoint.state.progress as (Omit<Progress, "draws"> & { draws?: number }) | undefined | null;
    if (!Number.isInteger(saved?.step)) {
      throw new UserError(`the checkpoint ${checkpoint.path} is damaged: state.progress has no step`, {
        hint: "remove its folder; the run then continues from an older checkpoint",
      });
    }
    Object.assign(progress, { draws: saved?.step, ...saved });
    warnOfChanges(run, checkpoint);
  } else if (weights !== undefined) {
    const { path } = await findCheckpoint(weights, warn);
    await sampler.load(await learner.loadState(join(path, "policy"), { optimizer: false }));
    await restoreCritic(run, path, false);
  }
  if (!folder) return;
  const { discarded } = folder.rewind(checkpoint ? progress.step : null);
  for (const { metrics } of folder.history()) health(metrics);
  if (discarded > 0) warn(`${discarded} lines of metrics after the checkpoint were set aside`);
}

/** The checkpoint of a Tinker service that the run is to go on from; the service knows of no steps. */
function heldByService({ config }: Run): string | undefined {
  const { resume_mode, resume_from_path } = config.training;
  if (resume_mode !== "path" || resume_from_path === null || !isTinkerPath(resume_from_path)) return undefined;
  if (config.rllm.backend === "tinker") return resume_from_path;
  throw new UserError(`training.resume_from_path=${resume_from_path} is held by a Tinker service`, {
    hint: "train with rllm/backend=tinker, or name a checkpoint's folder",
  });
}

/** A checkpoint of a run without a critic has none to go on with, and the other way round. */
async function restoreCritic({ config, critic, emit }: Run, checkpoint: string, optimizer: boolean): Promise<void> {
  if (config.rllm.trainer.val_only) return;
  const saved = join(checkpoint, "critic");
  const has = existsSync(saved);
  if (critic && has) {
    await critic.loadState(saved, { optimizer });
    return;
  }
  if (critic) emit({ type: "warning", text: "the checkpoint has no critic: the critic begins anew" });
  else if (has) emit({ type: "warning", text: "the checkpoint's critic is left aside: no estimator asks for one" });
}

async function chosenCheckpoint(run: Run): Promise<Checkpoint | undefined> {
  const { config, folder, emit } = run;
  const { resume_mode, resume_from_path } = config.training;
  const warn = (text: string) => emit({ type: "warning", text });
  if (resume_mode === "off" || !folder) return undefined;
  if (resume_mode === "auto") return latestCheckpoint(folder.checkpoints, warn, forgetCheckpoint(run));
  if (resume_from_path === null) {
    throw new UserError("training.resume_mode=path needs training.resume_from_path", {
      hint: "training.resume_from_path=runs/latest/checkpoints/step-000010",
    });
  }
  return findCheckpoint(resume_from_path, warn);
}

/** Settings that change which tasks and draws the remaining steps see. */
const drawKeys = [
  ["data", "train_batch_size"],
  ["rllm", "async_training", "enable"],
  ["rllm", "async_training", "mini_batch_size"],
  ["data", "shuffle"],
  ["rllm", "trainer", "seed"],
  ["rllm", "rollout", "n"],
  ["rllm", "rejection_sample", "multiplier"],
] as const;

function warnOfChanges({ storedConfig, emit }: Run, checkpoint: Checkpoint): void {
  const at = (value: unknown, path: readonly string[]) =>
    path.reduce<unknown>((section, name) => (section as Record<string, unknown> | undefined)?.[name], value);
  for (const path of drawKeys) {
    const before = at(checkpoint.state.config, path);
    const now = at(storedConfig, path);
    if (before === now) continue;
    const text = `${path.join(".")} was ${before} in the checkpoint and is ${now} now: the run goes on with other draws`;
    emit({ type: "warning", text });
  }
}
