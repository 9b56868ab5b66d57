/** Optimizer steps: the learning rate of a step, its microbatches, what is dropped, and the critic's steps. */
import { criticAdvantages, sequencesThatNeed, type TokenAdvantageOptions } from "../algorithms/advantages.ts";
import { type ValueLossOptions, valueLoss } from "../algorithms/critic.ts";
import type { Loss } from "../algorithms/types.ts";
import type { AdamParams, ForwardBackwardResult, Learner, StepResult } from "../backends/engine.ts";
import { NonFiniteLossError } from "../backends/engine-parts.ts";
import { RunError } from "../base/errors.ts";
import { addMetrics, averageMetrics, concatenate, mean, standardDeviation, valuesAt } from "../base/values.ts";
import { asWhole, countsOf, offsetsOf, selectSequences } from "../trajectories/batch.ts";
import type { Sequence, TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";

// Learning-rate schedules.

export type Schedule = "constant" | "linear" | "cosine";

export interface ScheduleOptions {
  schedule: Schedule;
  /** Number of steps of the linear warm-up. */
  warmupSteps: number;
  total: number;
  /** Rate at the end of the decay, as a share of the peak. */
  minRatio?: number;
}

/** The factor after the warm-up; `done` is the share of the decay that has passed, 0..1. */
const decays: Record<Schedule, (done: number) => number> = {
  constant: () => 1,
  linear: (done) => 1 - done,
  cosine: (done) => (1 + Math.cos(Math.PI * done)) / 2,
};

/**
 * The factor of the peak rate at a step: `step / warmupSteps` during the warm-up, then a decay from 1 to `minRatio` over
 * the remaining steps. It does not stop at `total`; see `learningRate`.
 */
export function scheduleFactor(step: number, { schedule, warmupSteps, total, minRatio = 0 }: ScheduleOptions): number {
  if (step < warmupSteps) return step / warmupSteps;
  const done = (step - warmupSteps) / Math.max(total - warmupSteps, 1);
  return minRatio + (1 - minRatio) * decays[schedule](done);
}

export interface LearningRateOptions {
  schedule: Schedule;
  /** Number of warm-up steps; 0 or less uses `warmupRatio`. */
  warmupSteps?: number;
  /** Share of all steps that are warm-up steps, rounded down. */
  warmupRatio: number;
  /** Peak rate. */
  base: number;
  minRatio?: number;
}

/**
 * The learning rate of one training step, as transformers and verl count: the first step has the factor of step 0, so a
 * schedule without warm-up begins at its peak, and the last one that of `total - 1`. Later steps keep that rate.
 *
 * @param step 1..total
 */
export function learningRate(step: number, total: number, options: LearningRateOptions): number {
  const { schedule, warmupSteps: steps = 0, warmupRatio, base, minRatio = 0 } = options;
  const warmupSteps = steps > 0 ? steps : Math.floor(total * warmupRatio);
  return base * scheduleFactor(Math.min(step, total) - 1, { schedule, warmupSteps, total, minRatio });
}

// Takes optimizer steps. The forward and backward of a step may be divided into microbatches to save memory.

/** Divides the sequences of a batch into microbatches, in order. */
export type Microbatches = (batch: TrainingBatch) => Int32Array[];

export const allAtOnce: Microbatches = ({ sequences }) => [Int32Array.from(sequences.keys())];

/** Divides a batch into microbatches of this many tasks. */
export function microbatchesOfTasks(groups: readonly TrajectoryGroup[], tasks: number): Microbatches {
  // A task's groups follow each other.
  let task = -1;
  const taskOfGroup = groups.map(({ taskId }, index) => (taskId === groups[index - 1]?.taskId ? task : ++task));
  return (batch) => {
    const microbatches: number[][] = [];
    let microbatch: number[] = [];
    let seen = new Set<number | undefined>();
    for (const [sequence, group] of batch.groups.entries()) {
      const own = taskOfGroup[group];
      if (microbatches.length === 0 || (!seen.has(own) && seen.size === tasks)) {
        microbatch = [];
        microbatches.push(microbatch);
        seen = new Set();
      }
      seen.add(own);
      microbatch.push(sequence);
    }
    return microbatches.map((indices) => Int32Array.from(indices));
  };
}

/** The optimizer steps that a model has taken on a batch so far. */
export interface OptimizerSteps {
  results: ForwardBackwardResult[];
  gradNorms: number[];
  /** The share of the update that is lost to rounding, for steps whose engine reports it. */
  lostToRounding: number[];
  /** Steps dropped because a loss or a gradient was not finite. */
  dropped: number;
}

export const noSteps = (): OptimizerSteps => ({ results: [], gradNorms: [], lostToRounding: [], dropped: 0 });

/** What the optimizer steps of a policy report under `actor/`; the metrics of its loss are not among them. */
export function policyStepMetrics({
  results,
  gradNorms,
  lostToRounding,
  dropped,
}: OptimizerSteps): Record<string, number> {
  const metrics: Record<string, number> = {
    "update/optimizer_steps": results.length,
    "update/dropped_not_finite": dropped,
  };
  if (results.length === 0) return metrics;
  metrics["actor/loss"] = mean(results.map(({ loss }) => loss));
  metrics["actor/grad_norm"] = mean(gradNorms);
  if (lostToRounding.length > 0) metrics["actor/update_lost_to_rounding"] = mean(lostToRounding);
  return metrics;
}

export interface AdamOptions extends Omit<AdamParams, "learningRate"> {
  rate: LearningRateOptions;
  /** Training steps of the run. */
  totalSteps: number;
}

/** @param step 1..totalSteps */
export function adamAt({ rate, totalSteps, ...params }: AdamOptions, step: number): AdamParams {
  return { ...params, learningRate: learningRate(step, totalSteps, rate) };
}

/**
 * Takes one optimizer step and adds it to `steps`.
 *
 * @returns why the step was dropped, if it was
 */
export async function takeStep(
  steps: OptimizerSteps,
  learner: Learner,
  batch: TrainingBatch,
  loss: Loss,
  microbatches: Microbatches,
  adam: AdamParams,
): Promise<string | undefined> {
  try {
    const { result, step } = await stepInMicrobatches(learner, batch, loss, microbatches(batch), adam);
    if (step.applied) {
      steps.results.push(result);
      steps.gradNorms.push(step.gradNorm);
      if (step.lostToRounding !== undefined) steps.lostToRounding.push(step.lostToRounding);
      return undefined;
    }
    steps.dropped++;
    return `the gradient's norm is ${step.gradNorm}`;
  } catch (error) {
    if (!(error instanceof NonFiniteLossError)) throw error;
    await learner.zeroGrad();
    steps.dropped++;
    return error.message;
  }
}

/** The gradient of the loss is the sum over microbatches; each evaluates a part of the loss. */
async function stepInMicrobatches(
  learner: Learner,
  batch: TrainingBatch,
  loss: Loss,
  microbatches: readonly Int32Array[],
  adam: AdamParams,
): Promise<{ result: ForwardBackwardResult; step: StepResult }> {
  const whole = { sequences: batch.sequences, loss };
  const parts = microbatches.length <= 1 ? [] : microbatches.map((part) => partOf(batch, loss, part));
  const last = parts.pop() ?? whole;
  const results: ForwardBackwardResult[] = [];
  for (const part of parts) results.push(await learner.forwardBackward(part.sequences, part.loss));
  if (learner.trainStep) {
    const { result, step } = await learner.trainStep(last.sequences, last.loss, adam);
    return { result: join(results, result), step };
  }
  const result = await learner.forwardBackward(last.sequences, last.loss);
  return { result: join(results, result), step: await learner.optimStep(adam) };
}

function partOf(batch: TrainingBatch, loss: Loss, share: Int32Array): { sequences: Sequence[]; loss: Loss } {
  const { sequences, offsets } = batch;
  const pick = (values: Float32Array) =>
    concatenate(
      Float32Array,
      Array.from(share, (at) => values.subarray(offsets[at], offsets[at + 1])),
    );
  const hosted = () => {
    const whole = loss.hosted?.();
    const inputs = Object.entries(whole?.inputs ?? {}).map(([name, values]) => [name, pick(values)] as const);
    return whole && { ...whole, inputs: Object.fromEntries(inputs) };
  };
  return {
    sequences: valuesAt(sequences, share),
    loss: {
      ...loss,
      hosted,
      evaluate: (outputs, chosen) => loss.evaluate(outputs, Int32Array.from(valuesAt(share, chosen))),
    },
  };
}

function join(earlier: readonly ForwardBackwardResult[], last: ForwardBackwardResult): ForwardBackwardResult {
  if (earlier.length === 0) return last;
  const results = [...earlier, last];
  const counts = results.flatMap(({ outputs }) => [...countsOf(outputs.offsets)]);
  const logprobs = concatenate(
    Float32Array,
    results.map(({ outputs }) => outputs.logprobs),
  );
  return {
    loss: results.reduce((sum, { loss }) => sum + loss, 0),
    metrics: addMetrics(results.map(({ metrics }) => metrics)),
    outputs: { offsets: offsetsOf(counts), logprobs },
  };
}

// The critic's two tasks: it estimates the values of a batch's tokens, and learns from the actual returns.

export interface CriticOptions {
  loss: ValueLossOptions;
  adam: AdamOptions;
  /** Steps in which only the critic is trained. */
  warmupSteps: number;
}

/**
 * One forward of the critic over the sequences whose estimators need values.
 *
 * @param batch has the advantages of the other sequences
 * @param rewards `[N]` each sequence's advantage at all of its tokens
 * @param penalties `[N]` the KL penalty of each token
 * @returns the batch with advantages (not normalized), returns and old values, and `critic/*`: means of values and
 *   returns, and the share of the returns' variance that the values explain (1: all)
 */
export async function estimateValues(
  critic: Learner,
  batch: TrainingBatch,
  rewards: Float32Array,
  penalties: Float32Array | undefined,
  options: { advantages: TokenAdvantageOptions; lambda: number },
): Promise<{ batch: TrainingBatch; metrics: Record<string, number> }> {
  const { advantages, lambda } = options;
  const judged = sequencesThatNeed("values", batch.roles, advantages);
  const oldValues = new Float32Array(batch.advantages.length);
  if (judged.length > 0) {
    const part = selectSequences(batch, judged);
    const { values } = await critic.forward(part.sequences, { values: true });
    if (values === undefined) throw new RunError("the engine did not return values");
    judged.forEach((sequence, index) => {
      oldValues.set(values.subarray(part.offsets[index], part.offsets[index + 1]), batch.offsets[sequence]);
    });
  }
  const given = { rewards, values: oldValues, penalties };
  const found = { ...batch, ...criticAdvantages(batch, judged, given, { gamma: advantages.gamma, lambda }), oldValues };
  const { returns = [], oldValues: values = [] } = selectSequences(found, judged);
  return { batch: found, metrics: valueMetrics([...values], [...returns]) };
}

function valueMetrics(values: readonly number[], returns: readonly number[]): Record<string, number> {
  if (values.length === 0) return {};
  const metrics: Record<string, number> = { "critic/values/mean": mean(values), "critic/returns/mean": mean(returns) };
  const spread = standardDeviation(returns);
  const errors = values.map((value, token) => (returns[token] ?? Number.NaN) - value);
  if (spread !== 0) metrics["critic/vf_explained_var"] = 1 - (standardDeviation(errors) / spread) ** 2;
  return metrics;
}

/** One optimizer step of the critic, on all tokens of the sequences whose estimators need values. */
export async function takeCriticStep(
  steps: OptimizerSteps,
  critic: Learner,
  minibatch: TrainingBatch,
  options: { loss: ValueLossOptions; adam: AdamParams; microbatches: Microbatches; advantages: TokenAdvantageOptions },
): Promise<string | undefined> {
  const { loss, adam, microbatches, advantages } = options;
  const part = asWhole(selectSequences(minibatch, sequencesThatNeed("values", minibatch.roles, advantages)));
  if (part.totals.tokens === 0) return undefined;
  const failure = await takeStep(steps, critic, part, valueLoss(part, loss), microbatches, adam);
  return failure && `critic: ${failure}`;
}

export function criticStepMetrics({ results, gradNorms, dropped }: OptimizerSteps, adam: AdamParams) {
  const metrics: Record<string, number> = {
    "critic/lr": adam.learningRate,
    "critic/optimizer_steps": results.length,
    "critic/dropped_not_finite": dropped,
  };
  if (results.length > 0) metrics["critic/grad_norm"] = mean(gradNorms);
  return { ...metrics, ...averageMetrics(addMetrics(results.map((result) => result.metrics))) };
}
