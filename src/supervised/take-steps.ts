/** Turns the input of a step into optimizer steps of one loss: the update of rows and pairs, which have no rewards and no old policy. */
import type { Loss } from "../algorithms/types.ts";
import type { Learner } from "../backends/engine.ts";
import { deriveSeed } from "../random.ts";
import { addMetrics, averageMetrics } from "../statistics.ts";
import { adamAt, allAtOnce, noSteps, policyStepMetrics, takeStep } from "../trainer/update/passes.ts";
import { recordTokens } from "../trainer/update/token-record.ts";
import type { Update, UpdateContext, UpdateOptions } from "../trainer/update/update-policy.ts";
import { splitBatch } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";

/** @param minibatches optimizer steps of a pass; `groups` stay whole, so there are at most as many as groups */
export async function takeSteps(
  learner: Learner,
  batch: TrainingBatch,
  lossOf: (part: TrainingBatch) => Loss,
  { passes, minibatches, seed, adam }: Pick<UpdateOptions, "passes" | "minibatches" | "seed" | "adam">,
  { step, onProgress }: UpdateContext,
): Promise<Update> {
  const tokens = recordTokens(batch);
  const params = adamAt(adam, step);
  const parts = Math.min(minibatches, new Set(batch.groups).size);
  const total = batch.sequences.length * passes;
  const steps = noSteps();
  let failure: string | undefined;
  let done = 0;
  for (let pass = 0; pass < passes; pass++) {
    for (const part of splitBatch(batch, parts, deriveSeed(seed, "minibatches", step, pass))) {
      const dropped = await takeStep(steps, learner, part, lossOf(part), allAtOnce, params);
      if (dropped === undefined) tokens.outputs(part, steps.results.at(-1)!.outputs);
      failure = dropped ?? failure;
      done += part.sequences.length;
      onProgress(done, total);
    }
  }
  const metrics = {
    ...averageMetrics(addMetrics(steps.results.map((result) => result.metrics))),
    ...policyStepMetrics(steps),
    "actor/lr": params.learningRate,
  };
  return { failure, tokens, klWeight: undefined, metrics };
}
