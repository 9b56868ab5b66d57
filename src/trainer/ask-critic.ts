/** What a critic makes of a batch: advantages, and what it is to learn from it. */
import { criticAdvantages, judgedSequences } from "../algorithms/critic-advantages.ts";
import type { Learner } from "../backends/engine.ts";
import { RunError } from "../errors.ts";
import { mean, standardDeviation } from "../statistics.ts";
import { selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { advantageOptions } from "./credit-options.ts";
import type { Run } from "./run.ts";

/** The sequences whose roles' estimators read values. */
export function judgedPart({ config, experiment }: Run, batch: TrainingBatch): Int32Array {
  const judged = judgedSequences(batch.roles, advantageOptions(config, experiment.estimators));
  return Int32Array.from(batch.roles.keys()).filter((sequence) => judged[sequence] === 1);
}

/**
 * One forward of the critic over the sequences that it judges.
 *
 * @param batch its advantages are of the other sequences
 * @param rewards `[N]` each sequence's figure at all of its tokens
 * @param penalties `[N]` the KL's price of each token
 * @returns the batch with advantages not yet normalised, returns and old values, and `critic/*`: means of values and
 *   returns, and the share of the returns' variance that the values explain (1: all)
 */
export async function askCritic(
  run: Run,
  critic: Learner,
  batch: TrainingBatch,
  rewards: Float32Array,
  penalties: Float32Array | undefined,
): Promise<{ batch: TrainingBatch; metrics: Record<string, number> }> {
  const { gamma, lam: lambda } = run.config.rllm.algorithm;
  const asked = judgedPart(run, batch);
  const oldValues = new Float32Array(batch.advantages.length);
  if (asked.length > 0) {
    const part = selectSequences(batch, asked);
    const { values } = await critic.forward(part.sequences, { values: true });
    if (values === undefined) throw new RunError("the engine gave no values");
    asked.forEach((sequence, index) => {
      oldValues.set(values.subarray(part.offsets[index]!, part.offsets[index + 1]!), batch.offsets[sequence]!);
    });
  }
  const judged = new Uint8Array(batch.sequences.length);
  for (const sequence of asked) judged[sequence] = 1;
  const given = { rewards, values: oldValues, ...(penalties ? { penalties } : {}) };
  const found = { ...batch, ...criticAdvantages(batch, judged, given, { gamma, lambda }), oldValues };
  const { returns, oldValues: values } = selectSequences(found, asked);
  return { batch: found, metrics: figures(values!, returns!) };
}

function figures(values: Float32Array, returns: Float32Array): Record<string, number> {
  if (values.length === 0) return {};
  const spread = standardDeviation([...returns]);
  const errors = Array.from(returns, (value, token) => value - values[token]!);
  return {
    "critic/values/mean": mean([...values]),
    "critic/returns/mean": mean([...returns]),
    ...(spread === 0 ? {} : { "critic/vf_explained_var": 1 - (standardDeviation(errors) / spread) ** 2 }),
  };
}
