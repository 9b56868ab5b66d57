/** Baselines that differ from token to token, by how sure the policy was there. */
import { estimatorOf } from "../algorithms/advantages.ts";
import { optimalTokenBaseline } from "../algorithms/estimators/optimal-token-baseline.ts";
import { RunError } from "../errors.ts";
import { selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { advantageOptions } from "./credit-options.ts";
import type { Run } from "./run.ts";

/**
 * Takes the optimal token baseline from the returns of the sequences whose roles' estimators ask for it, group by group;
 * one forward of the policy over them. The others keep their advantages.
 *
 * @param batch its advantages are those sequences' returns
 */
export async function compareByTokens(
  { config, experiment, learner }: Run,
  batch: TrainingBatch,
): Promise<TrainingBatch> {
  const options = advantageOptions(config, experiment.estimators);
  const asked = Int32Array.from(batch.sequences.keys()).filter(
    (sequence) => estimatorOf(batch.roles[sequence]!, options).needs === "concentration",
  );
  if (asked.length === 0) return batch;
  const part = selectSequences(batch, asked);
  const { logprobs, concentration, offsets } = await learner.forward(part.sequences, { concentration: true });
  if (concentration === undefined) throw new RunError("the engine gave no concentration");
  const groups = new Map<number, number[]>();
  asked.forEach((sequence, index) => {
    const group = batch.groups[sequence]!;
    groups.set(group, [...(groups.get(group) ?? []), index]);
  });
  const advantages = batch.advantages.slice();
  for (const members of groups.values()) {
    const rows = members.map((index) => {
      const own = (values: Float32Array) => values.subarray(offsets[index]!, offsets[index + 1]!);
      return { returns: own(part.advantages), logprobs: own(logprobs), sumPiSquared: own(concentration) };
    });
    optimalTokenBaseline(rows).forEach((found, row) => {
      advantages.set(found, batch.offsets[asked[members[row]!]!]!);
    });
  }
  return { ...batch, advantages };
}
