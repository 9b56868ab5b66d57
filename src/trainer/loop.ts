/**
 * The synchronous training loop. Read this first: the numbers are the stages of a step. A step learns from a `StepSource`,
 * which is rollouts, or the rows and pairs of `src/supervised` in place of stages 1 to 5.
 */
import { RunError } from "../base/errors.ts";
import { type Dataset, type TaskDraw, takeTasks } from "../data/dataset.ts";
import type { RunEvent } from "../tracking/events.ts";
import type { TokenValuesByTrajectory } from "../tracking/json-lines.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import { toBatch } from "../trajectories/batch.ts";
import {
  type GatheredStep,
  gather,
  groupEpisodes,
  needsAnotherDraw,
  nothingGathered,
  selectGroups,
} from "../trajectories/groups.ts";
import type { Episode } from "../trajectories/types.ts";
import type { CheckpointSaver } from "./checkpoints.ts";
import { assignCredit, type Credit } from "./credit.ts";
import { countFailingSteps, type OutageContext, type UnhandledErrors, watchOutage } from "./failures.ts";
import type { RunOptions } from "./options.ts";
import type { Plan } from "./plan.ts";
import { type Clock, type Recorder, startClock } from "./record.ts";
import type { Rollouts } from "./rollouts.ts";
import type { Models, Progress, Validation } from "./state.ts";
import type { StepSource } from "./step-source.ts";
import { askTeachers } from "./teachers.ts";
import { type Update, updatePolicy } from "./update.ts";
import { validate } from "./validate.ts";

/** Trains until the plan is done or a stop is requested. */
export async function runLoop(run: Run): Promise<void> {
  const { options, models, progress } = run;
  const { plan } = options;
  const source = run.source ?? rolloutSource(run);
  const clock = runClock(run);
  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const validates = isDue(step, plan.validateEvery, plan);

    const input = await source.next(step);
    clock.lap(source.phase);

    const { gathered, credit, batch, origins, metrics } = input;
    const update = await source.update(input, {
      step,
      klWeight: progress.klWeight,
      onProgress: (done, total) => run.emit({ type: "update-progress", step, done, total }),
    });
    clock.lap("update");

    // 7. Publish: the sampler continues with the new weights.
    await models.sampler.wake?.();
    if (source.samples || validates) {
      await models.sampler.load(await models.learner.publish());
      run.emit({ type: "weights", step, version: models.sampler.version });
    }
    clock.lap("publish");

    // 8. Record, validate, save.
    progress.draws += gathered.draws;
    const training = update.tokens.byStep(batch, origins);
    await completeStep(run, { step, gathered, credit, update, training, clock, metrics });
    if (validates) run.validation = await run.validate(step);
    clock.lap("validation");
    const stop = run.stopRequested();
    if (stop || isDue(step, plan.saveEvery, plan) || (await isNewBest(run, step))) {
      await run.checkpoints?.save(progress, run.validation);
    }
    clock.lap("save");
    if (stop) return;
  }
}

/** Whether to validate or save after this step: the last one, and each `every`-th; 0: only the last one. */
export const isDue = (step: number, every: number, { totalSteps }: Pick<Plan, "totalSteps">): boolean =>
  step === totalSteps || (every > 0 && step % every === 0);

/** Whether the validation of this step is the best so far, and such weights are kept. */
export async function isNewBest({ checkpoints, options, validation }: Run, step: number): Promise<boolean> {
  if (!options.checkpoints.keepBest || validation.step !== step) return false;
  return (await checkpoints?.isNewBest(validation)) === true;
}

/** Rollouts are sampled with the published weights, compared, and learned from by their advantages. */
const rolloutSource = (run: Run): StepSource => ({
  phase: "rollout",
  samples: true,
  async next(step) {
    const { options, models, progress } = run;
    let draws = nothingGathered;
    do {
      // 1. Draw tasks.
      const draw = takeTasks(run.tasks, options.tasks, progress.draws + draws.draws + 1);
      // 2. Roll out.
      const episodes = await attemptDraw(run, draw, step);
      // 3. Group: the trajectories of one role for one task are compared with each other.
      draws = gather(draws, groupEpisodes(episodes, options.grouping));
    } while (needsAnotherDraw(draws, options.gathering, (text) => warn(run, step, text)));
    const gathered = selectGroups(draws, options.gathering);
    await models.sampler.sleep?.();
    // 4. Credit: rewards become advantages.
    const credit = assignCredit(gathered.kept, options.credit, progress.rewardMoments);
    // 5. Batch: trajectories become sequences of tokens.
    return { gathered, credit, ...toBatch(credit.groups, credit.advantages, options.sequences) };
  },
  async update({ batch, origins, credit }, context) {
    const { models, options } = run;
    // 6. Update the weights; teachers, if there are some, score the batch first.
    const scores = models.teaching && (await askTeachers(models.teaching, batch, origins, credit.groups));
    return updatePolicy(models, batch, options.update, { ...context, scores });
  },
});

/** Attempts the tasks of a draw, and repeats this while all rollouts fail because of an outage. */
async function attemptDraw({ rollouts, options, outages }: Run, { draw, epoch, tasks }: TaskDraw, step: number) {
  const { attempts, greedy } = options;
  const outage = watchOutage(outages);
  let episodes: readonly Episode[];
  do {
    episodes = await rollouts.collect({ ...attempts, tasks, step, draw });
  } while (await outage.retry({ mode: "train", step }, episodes));
  return { epoch, episodes, greedy: greedy && (await rollouts.collect({ ...greedy, tasks, step, draw })) };
}

/** Reports each phase of the step that is being worked on, and of the one that was just completed. */
export function runClock({ emit, progress }: Pick<Run, "emit" | "progress">): Clock {
  const after = new Set(["record", "logging", "validation", "save"]);
  return startClock((name, seconds) => {
    emit({ type: "phase-end", step: progress.step + (after.has(name) ? 0 : 1), name, seconds });
  });
}

export interface CompletedStep {
  step: number;
  gathered: GatheredStep;
  credit: Credit;
  update: Update;
  /** What the update computed for the tokens of each step. */
  training: TokenValuesByTrajectory;
  clock: Clock;
  /** The metrics of batching, and of asynchronous training. */
  metrics: Record<string, number>;
}

/**
 * Applies the results of a step to the progress, and records them.
 * @throws RunError if too many steps in a row failed
 */
export async function completeStep(run: Run, completed: CompletedStep): Promise<void> {
  const { progress, options } = run;
  const { step, credit, gathered, update } = completed;
  progress.step = step;
  progress.rewardMoments = credit.moments;
  progress.klWeight = update.klWeight;
  await run.recorder.step({ ...completed, metrics: { ...completed.metrics, ...update.metrics } });
  const isLast = step === options.plan.totalSteps;
  progress.failingSteps = countFailingSteps(progress.failingSteps ?? 0, gathered.episodes, { step, isLast });
  if (update.failure !== undefined) warn(run, step, `an update was dropped: ${update.failure}`);
  progress.badSteps = countBadSteps(progress.badSteps, update.failure, options.maxBadSteps);
}

/**
 * @param before steps in a row without a finite update, before this one
 * @returns the same count with this step
 * @throws RunError if the count reaches `most`
 */
function countBadSteps(before: number, failure: string | undefined, most: number): number {
  if (failure === undefined) return 0;
  const count = before + 1;
  if (count < most) return count;
  throw new RunError(`${count} steps in a row ended without a finite update; the last: ${failure}`, {
    hint: "lower training.learning_rate or set local.dtype=float32, then continue from the last checkpoint with --resume",
  });
}

export function warn({ emit }: Pick<Run, "emit">, step: number, text: string): void {
  emit({ type: "warning", text: `step ${step}: ${text}` });
}

// A run while it trains: its options, the stages of its loop, and the values that change from step to step.

/** What `open-run.ts` opens. */
export interface RunParts {
  readonly options: RunOptions;
  /** Tasks to learn from. */
  readonly tasks: Dataset<unknown>;
  readonly validationTasks: Dataset<unknown> | undefined;
  readonly models: Models;
  readonly rollouts: Rollouts;
  /** Undefined: the run learns from rollouts. */
  readonly source: StepSource | undefined;
  readonly recorder: Recorder;
  readonly checkpoints: CheckpointSaver | undefined;
  /** Undefined if the run only measures. */
  readonly folder: RunFolder | undefined;
  readonly progress: Progress;
  /** Aborted when the run must stop at once. */
  readonly signal: AbortSignal;
  /** A first Ctrl-C. */
  readonly interrupt: { readonly requested: boolean };
  /** Errors of the user's code that nothing awaited. */
  readonly unhandled: UnhandledErrors;
  /** Whether the engine can export whole models. */
  readonly canMerge: boolean;
  emit(event: RunEvent): void;
}

/** Only the loops get the whole run; the stages get options and data. */
export interface Run extends RunParts {
  /** For `watchOutage`. */
  readonly outages: OutageContext;
  /** The last validation. */
  validation: Validation;
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
}

const noValidation: Validation = { step: -1, metrics: {}, episodes: [] };

export function createRun(parts: RunParts): Run {
  const { emit, interrupt, options, recorder, rollouts, signal, source, unhandled, validationTasks } = parts;
  const stopRequested = () => interrupt.requested || unhandled.error !== undefined;
  const outages = { signal, emit, stopRequested, keep: recorder.episodes };
  const measured = { dataset: validationTasks, measure: source?.validate, rollouts, recorder, emit };
  const measures = measured.dataset !== undefined || measured.measure !== undefined;
  return {
    ...parts,
    outages,
    validation: noValidation,
    stopRequested,
    validate: async (step, stops) =>
      measures ? validate(measured, options.validation, step, watchOutage(outages, stops)) : noValidation,
  };
}
