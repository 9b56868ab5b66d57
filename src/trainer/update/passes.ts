/** Takes optimizer steps. The forward and backward of a step may be divided into several passes to save memory. */

import { type LearningRateOptions, learningRate } from "../../algorithms/schedules/learning-rate.ts";
import type { Loss } from "../../algorithms/types.ts";
import { valuesAt } from "../../arrays.ts";
import { NonFiniteLossError } from "../../backends/check-loss-value.ts";
import type { AdamParams, ForwardBackwardResult, Learner, StepResult } from "../../backends/engine.ts";
import { concatenate } from "../../concatenate.ts";
import { addMetrics, mean } from "../../statistics.ts";
import { countsOf, offsetsOf } from "../../trajectories/batch.ts";
import type { Sequence, TrainingBatch, TrajectoryGroup } from "../../trajectories/types.ts";

/** Divides the sequences of a batch into passes, in order. */
export type Shares = (batch: TrainingBatch) => Int32Array[];

export const allAtOnce: Shares = ({ sequences }) => [Int32Array.from(sequences.keys())];

/** Divides a batch into passes of this many tasks. */
export function sharesOfTasks(groups: readonly TrajectoryGroup[], tasks: number): Shares {
  // A task's groups follow each other.
  let task = -1;
  const taskOfGroup = groups.map(({ taskId }, index) => (taskId === groups[index - 1]?.taskId ? task : ++task));
  return (batch) => {
    const shares: number[][] = [];
    let share: number[] = [];
    let seen = new Set<number | undefined>();
    for (const [sequence, group] of batch.groups.entries()) {
      const own = taskOfGroup[group];
      if (shares.length === 0 || (!seen.has(own) && seen.size === tasks)) {
        share = [];
        shares.push(share);
        seen = new Set();
      }
      seen.add(own);
      share.push(sequence);
    }
    return shares.map((indices) => Int32Array.from(indices));
  };
}

/** The optimizer steps that a model has taken on a batch so far. */
export interface StepsTaken {
  results: ForwardBackwardResult[];
  gradNorms: number[];
  /** The share of the update that is lost to rounding, for steps whose engine reports it. */
  lostToRounding: number[];
  /** Steps dropped because a loss or a gradient was not finite. */
  dropped: number;
}

export const noSteps = (): StepsTaken => ({ results: [], gradNorms: [], lostToRounding: [], dropped: 0 });

/** What the optimizer steps of a policy report under `actor/`; the metrics of its loss are not among them. */
export function policyStepMetrics({ results, gradNorms, lostToRounding, dropped }: StepsTaken): Record<string, number> {
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
  steps: StepsTaken,
  learner: Learner,
  batch: TrainingBatch,
  loss: Loss,
  shares: Shares,
  adam: AdamParams,
): Promise<string | undefined> {
  try {
    const { result, step } = await stepInPasses(learner, batch, loss, shares(batch), adam);
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

/** The gradient of the loss is the sum over passes; each pass evaluates a part of the loss. */
async function stepInPasses(
  learner: Learner,
  batch: TrainingBatch,
  loss: Loss,
  shares: readonly Int32Array[],
  adam: AdamParams,
): Promise<{ result: ForwardBackwardResult; step: StepResult }> {
  const whole = { sequences: batch.sequences, loss };
  const parts = shares.length <= 1 ? [] : shares.map((share) => partOf(batch, loss, share));
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
