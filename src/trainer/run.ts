/** A run while it trains: its recipe, the stages of its loop, and the values that change from step to step. */
import type { Dataset } from "../data/types.ts";
import type { RunEvent } from "../tracking/events.ts";
import type { RunFolder } from "../tracking/run-folder/run-folder.ts";
import type { CheckpointSaver } from "./checkpoints/checkpoint-saver.ts";
import type { StrayErrors } from "./opening/stray-errors.ts";
import type { Recipe } from "./recipe/recipe.ts";
import type { Recorder } from "./records/record.ts";
import type { OutageContext } from "./rollouts/failing-rollouts.ts";
import type { Rollouts } from "./rollouts/rollouts.ts";
import type { Source } from "./source.ts";
import type { Models, Progress, Validation } from "./state.ts";

/** Only the loops get the whole run; the stages get options and data. */
export interface Run {
  readonly recipe: Recipe;
  /** Tasks to learn from. */
  readonly tasks: Dataset<unknown>;
  readonly models: Models;
  readonly rollouts: Rollouts;
  /** Undefined: the run learns from rollouts. */
  readonly source: Source | undefined;
  readonly recorder: Recorder;
  readonly checkpoints: CheckpointSaver | undefined;
  /** Undefined if the run only measures. */
  readonly folder: RunFolder | undefined;
  /** For `watchOutage`. */
  readonly outages: OutageContext;
  /** Whether the engine can export whole models. */
  readonly canMerge: boolean;
  readonly progress: Progress;
  /** The last validation. */
  validation: Validation;
  /** Aborted when the run must stop at once. */
  readonly signal: AbortSignal;
  /** Errors of the user's code that nothing awaited. */
  readonly strays: StrayErrors;
  /** Whether a first Ctrl-C, or an error outside of rollouts, asked to stop after the current step. */
  stopRequested(): boolean;
  /**
   * Measures the published weights on the validation tasks, if the experiment has some.
   *
   * @param step the step that was done; 0: before training
   * @param stops false: the caller reports it if all rollouts fail
   * @throws RunError if all rollouts fail
   */
  validate(step: number, stops?: boolean): Promise<Validation>;
  emit(event: RunEvent): void;
}
