/** Where a run begins: fresh, from given weights, or where an earlier process left it. */
import { join } from "node:path";
import { UserError } from "../errors.ts";
import { type Checkpoint, latestCheckpoint, readCheckpoint } from "./checkpoints.ts";
import { openCheckpoint } from "./open-checkpoint.ts";
import type { Progress, Run } from "./run.ts";

/**
 * Loads what `training.resume_mode` names and brings the run folder back to that step. A run folder
 * without a checkpoint starts over: every draw derives from the step, so it repeats what was lost.
 *
 * @param weights a checkpoint to take only the weights of
 */
export async function restore(run: Run, weights: string | undefined): Promise<void> {
  const { folder, policy, progress, history, emit } = run;
  const checkpoint = await chosenCheckpoint(run);
  if (checkpoint) {
    await policy.loadState(join(checkpoint.path, "policy"), { optimizer: true });
    Object.assign(progress, checkpoint.state.progress as Progress);
    warnOfChanges(run, checkpoint);
  } else if (weights !== undefined) {
    const { folder: path } = await openCheckpoint(weights);
    await policy.loadState(join(path, "policy"), { optimizer: false });
  }
  const kept = folder?.rewind(checkpoint ? progress.step : null);
  if (!kept) return;
  history.push(...kept.history);
  if (kept.discarded > 0) {
    emit({ type: "warning", text: `${kept.discarded} lines of metrics after the checkpoint were set aside` });
  }
}

async function chosenCheckpoint({ config, folder, emit }: Run): Promise<Checkpoint | undefined> {
  const { resume_mode, resume_from_path } = config.training;
  if (resume_mode === "off" || !folder) return undefined;
  if (resume_mode === "auto") return latestCheckpoint(folder.checkpoints, (text) => emit({ type: "warning", text }));
  if (resume_from_path === null) {
    throw new UserError("training.resume_mode=path needs training.resume_from_path", {
      hint: "training.resume_from_path=runs/latest/checkpoints/step-000010",
    });
  }
  return readCheckpoint((await openCheckpoint(resume_from_path)).folder);
}

/** Settings that change which tasks and draws the remaining steps see. */
const drawKeys = [
  ["data", "train_batch_size"],
  ["data", "shuffle"],
  ["rllm", "trainer", "seed"],
  ["rllm", "rollout", "n"],
] as const;

function warnOfChanges({ config, emit }: Run, checkpoint: Checkpoint): void {
  const at = (value: unknown, path: readonly string[]) =>
    path.reduce<unknown>((section, name) => (section as Record<string, unknown> | undefined)?.[name], value);
  for (const path of drawKeys) {
    const before = at(checkpoint.state.config, path);
    const now = at(config, path);
    if (before === now) continue;
    const text = `${path.join(".")} was ${before} in the checkpoint and is ${now} now: the run goes on with other draws`;
    emit({ type: "warning", text });
  }
}
