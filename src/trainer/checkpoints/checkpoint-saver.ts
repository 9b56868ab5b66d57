/** Saves checkpoints of a run. A run can continue from a checkpoint, and a checkpoint can be used by itself. */
import { join, relative } from "node:path";
import { messageOf } from "../../errors.ts";
import { own } from "../../own.ts";
import type { RunEvent } from "../../tracking/events.ts";
import type { Models, Progress, Validation } from "../state.ts";
import { bestCheckpoint, type OnDelete, type Retention, saveCheckpoint } from "./checkpoints.ts";

export interface CheckpointOptions {
  /** The validation metric that finds the best checkpoint. */
  bestMetric: string;
  /** Save after every validation that is better than all before. */
  keepBest: boolean;
  retention: Retention;
}

export interface CheckpointParts {
  /** The folder of all checkpoints. */
  folder: string;
  models: Pick<Models, "learner" | "critic">;
  storedConfig: Readonly<Record<string, unknown>>;
  emit(event: RunEvent): void;
}

export interface CheckpointSaver {
  /** Whether the validation of this step is a new best, which is saved if `keepBest` is set. */
  isNewBest(step: number, validation: Validation): Promise<boolean>;
  save(progress: Progress, validation: Validation): Promise<void>;
}

/** Deletes the data of a checkpoint that an engine stores outside of its folder. A failure is only reported. */
export const forgetCheckpoint =
  ({ models: { learner }, emit }: Pick<CheckpointParts, "models" | "emit">): OnDelete =>
  async (folder) => {
    try {
      await learner.forgetState?.(join(folder, "policy"));
    } catch (error) {
      emit({ type: "warning", text: `data of a deleted checkpoint could not be deleted: ${messageOf(error)}` });
    }
  };

export function openCheckpointSaver(parts: CheckpointParts, options: CheckpointOptions): CheckpointSaver {
  const { folder, models, storedConfig, emit } = parts;
  const { bestMetric, keepBest, retention } = options;
  const metricsOf = (step: number, validation: Validation) => (validation.step === step ? validation.metrics : {});
  return {
    async isNewBest(step, validation) {
      const score = own(metricsOf(step, validation), bestMetric);
      if (!keepBest || score === undefined) return false;
      const best = await bestCheckpoint(folder);
      return best?.score === undefined || score > best.score;
    },
    async save(progress, validation) {
      const { step } = progress;
      const { learner, critic } = models;
      const metrics = metricsOf(step, validation);
      const score = own(metrics, bestMetric);
      const files: Record<string, (directory: string) => Promise<void>> = {
        policy: (directory) => learner.saveState(directory),
      };
      if (critic) files.critic = (directory) => critic.saveState(directory);
      const content = { step, state: { progress, config: storedConfig }, metrics, score };
      const saved = await saveCheckpoint(folder, content, files, retention, forgetCheckpoint(parts));
      const path = relative(process.cwd(), saved.path);
      const event = { type: "checkpoint-saved", step, path, bytes: saved.bytes, seconds: saved.seconds } as const;
      const isBest = score !== undefined && (await bestCheckpoint(folder))?.step === step;
      emit(isBest ? { ...event, best: { metric: bestMetric, value: score } } : event);
      for (const removed of saved.removed) {
        emit({ type: "checkpoint-removed", path: relative(process.cwd(), removed) });
      }
    },
  };
}
