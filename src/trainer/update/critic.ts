/** The critic's two tasks: it estimates the values of a batch's tokens, and learns from the actual returns. */
import { criticAdvantages } from "../../algorithms/advantages/critic-advantages.ts";
import { sequencesThatNeed } from "../../algorithms/advantages/estimate-advantages.ts";
import type { TokenAdvantageOptions } from "../../algorithms/advantages/token-advantages.ts";
import { type ValueLossOptions, valueLoss } from "../../algorithms/value-loss.ts";
import type { AdamParams, Learner } from "../../backends/engine.ts";
import { RunError } from "../../errors.ts";
import { addMetrics, averageMetrics, mean, standardDeviation } from "../../statistics.ts";
import { asWhole, selectSequences } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { type AdamOptions, type Shares, type StepsTaken, takeStep } from "./passes.ts";

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
export async function askCritic(
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
  steps: StepsTaken,
  critic: Learner,
  minibatch: TrainingBatch,
  options: { loss: ValueLossOptions; adam: AdamParams; shares: Shares; advantages: TokenAdvantageOptions },
): Promise<string | undefined> {
  const { loss, adam, shares, advantages } = options;
  const part = asWhole(selectSequences(minibatch, sequencesThatNeed("values", minibatch.roles, advantages)));
  if (part.totals.tokens === 0) return undefined;
  const failure = await takeStep(steps, critic, part, valueLoss(part, loss), shares, adam);
  return failure && `critic: ${failure}`;
}

export function criticStepMetrics({ results, gradNorms, dropped }: StepsTaken, adam: AdamParams) {
  const metrics: Record<string, number> = {
    "critic/lr": adam.learningRate,
    "critic/optimizer_steps": results.length,
    "critic/dropped_not_finite": dropped,
  };
  if (results.length > 0) metrics["critic/grad_norm"] = mean(gradNorms);
  return { ...metrics, ...averageMetrics(addMetrics(results.map((result) => result.metrics))) };
}
