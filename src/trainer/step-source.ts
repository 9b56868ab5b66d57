/** What a run learns from: rollouts (`loop.ts`), or the rows and pairs of a dataset (`src/supervised`). The loop does not know which. */
import type { NoVision, Vision } from "../chat/images.ts";
import type { Chat } from "../chat/types.ts";
import type { Config } from "../config/schema.ts";
import type { Dataset, TaskOptions } from "../data/dataset.ts";
import type { SequenceOrigin } from "../trajectories/batch.ts";
import type { GatheredStep } from "../trajectories/groups.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import type { Credit } from "./credit.ts";
import type { Models } from "./state.ts";
import type { Update, UpdateContext, UpdateOptions } from "./update.ts";

/** The sequences of one step, and the episodes that they come from. */
export interface StepInput {
  gathered: GatheredStep;
  credit: Credit;
  batch: TrainingBatch;
  /** `[S]` */
  origins: readonly SequenceOrigin[];
  metrics: Record<string, number>;
}

export interface StepSource {
  /** The name of the time that `next` takes: `time/{phase}`. */
  readonly phase: string;
  /** Whether it samples, so that the weights of each step must be published. */
  readonly samples: boolean;
  /** @param step counts from 1 */
  next(step: number): Promise<StepInput>;
  update(input: StepInput, context: UpdateContext): Promise<Update>;
  /** Measures the current weights on data of its own: `val/*`. */
  validate?(): Promise<Record<string, number>>;
}

/** What an experiment can name instead of rollouts. */
export interface StepSourceKind {
  /** The value of `training.source`. */
  name: Exclude<Config["training"]["source"], "rollouts">;
  /** Whether it compares with the model before training. */
  needsReference: boolean;
  /** @throws UserError for data that cannot be used */
  open(parts: StepSourceParts, config: Config): Promise<StepSource> | StepSource;
}

export interface StepSourceParts {
  tasks: Dataset<unknown>;
  chat: Chat;
  vision: Vision | NoVision;
  models: Models;
  options: { tasks: TaskOptions; update: UpdateOptions };
  /** The longest sequence that all models accept, in tokens. */
  contextWindow: number;
  vocabularySize: number;
  warn(text: string): void;
}
