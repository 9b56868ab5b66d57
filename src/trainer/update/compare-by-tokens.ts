/** Baselines per token, which depend on how sure the policy was at each token. */
import { estimatorOf } from "../../algorithms/advantages/estimate-advantages.ts";
import type { TokenAdvantageOptions } from "../../algorithms/advantages/token-advantages.ts";
import type { EstimatorSpec } from "../../algorithms/estimators/index.ts";
import { optimalTokenBaseline } from "../../algorithms/estimators/optimal-token-baseline.ts";
import type { Learner } from "../../backends/engine.ts";
import { RunError } from "../../errors.ts";
import { selectSequences } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";

/** The sequences whose roles' estimators need this. */
export function sequencesThatNeed(
  need: EstimatorSpec["needs"],
  { roles }: TrainingBatch,
  options: TokenAdvantageOptions,
): Int32Array {
  return Int32Array.from(roles.flatMap((role, index) => (estimatorOf(role, options).needs === need ? [index] : [])));
}

/**
 * Subtracts the optimal token baseline from the returns of the sequences whose estimators need it, group by group, after
 * one forward of the policy over them. The other sequences keep their advantages.
 *
 * @param batch its advantages are those sequences' returns
 */
export async function compareByTokens(
  learner: Learner,
  batch: TrainingBatch,
  options: TokenAdvantageOptions,
): Promise<TrainingBatch> {
  const compared = sequencesThatNeed("concentration", batch, options);
  if (compared.length === 0) return batch;
  const part = selectSequences(batch, compared);
  const { logprobs, concentration, offsets } = await learner.forward(part.sequences, { concentration: true });
  if (concentration === undefined) throw new RunError("the engine did not return concentrations");
  const advantages = batch.advantages.slice();
  for (const group of new Set(part.groups)) {
    const members = [...part.groups.keys()].filter((index) => part.groups[index] === group);
    const rows = members.map((index) => {
      const own = (values: Float32Array) => values.subarray(offsets[index], offsets[index + 1]);
      return { returns: own(part.advantages), logprobs: own(logprobs), sumPiSquared: own(concentration) };
    });
    for (const [row, found] of optimalTokenBaseline(rows).entries()) {
      advantages.set(found, batch.offsets[compared[members[row]!]!]);
    }
  }
  return { ...batch, advantages };
}
