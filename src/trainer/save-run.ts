/** A checkpoint of the run as it stands, complete enough to go on from or to use by itself. */
import { join, relative } from "node:path";
import { own } from "../own.ts";
import { bestCheckpoint, type OnDelete, saveCheckpoint } from "./checkpoints.ts";
import type { Run } from "./run.ts";

/** What an engine keeps of a checkpoint elsewhere goes with it; where that fails it is told, and stays. */
export const forgetCheckpoint =
  ({ learner, emit }: Pick<Run, "learner" | "emit">): OnDelete =>
  async (folder) => {
    try {
      await learner.forgetState?.(join(folder, "policy"));
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      emit({ type: "warning", text: `what belongs to a deleted checkpoint could not be deleted: ${text}` });
    }
  };

/** Whether the validation of this step calls for a checkpoint of its own (`training.keep_best`). */
export async function isNewBest({ folder, progress, config, validation }: Run): Promise<boolean> {
  const score = validation.step === progress.step ? own(validation.metrics, config.training.best_metric) : undefined;
  if (!config.training.keep_best || folder === undefined || score === undefined) return false;
  const best = await bestCheckpoint(folder.checkpoints);
  return best?.score === undefined || score > best.score;
}

export async function saveRun(run: Run): Promise<void> {
  const { folder, progress, learner, critic, config, validation, emit } = run;
  if (!folder) return;
  const { best_metric, max_ckpt_num, max_ckpt_mem } = config.training;
  const measured = validation.step === progress.step ? validation.metrics : {};
  const score = own(measured, best_metric);
  const saved = await saveCheckpoint(
    folder.checkpoints,
    {
      step: progress.step,
      state: { progress, config: run.storedConfig },
      metrics: measured,
      ...(score === undefined ? {} : { score }),
    },
    {
      policy: (directory) => learner.saveState(directory),
      ...(critic ? { critic: (directory: string) => critic.saveState(directory) } : {}),
    },
    { maxNumber: max_ckpt_num, maxBytes: max_ckpt_mem * 1e9 },
    forgetCheckpoint(run),
  );
  const path = relative(process.cwd(), saved.path);
  const best = await bestCheckpoint(folder.checkpoints);
  emit({
    ...{ type: "checkpoint-saved", step: progress.step, path, bytes: saved.bytes, seconds: saved.seconds },
    ...(score !== undefined && best?.step === progress.step ? { best: { metric: best_metric, value: score } } : {}),
  });
  for (const removed of saved.removed) emit({ type: "checkpoint-removed", path: relative(process.cwd(), removed) });
}
