/** The critic's optimizer steps beside the policy's: the same minibatches and passes, a loss of its own. */
import { addMetrics, averageMetrics } from "../algorithms/metric-sums.ts";
import { valueLoss } from "../algorithms/value-loss.ts";
import { NonFiniteLossError } from "../backends/check-loss-value.ts";
import type { ForwardBackwardResult } from "../backends/engine.ts";
import { mean } from "../statistics.ts";
import { asWhole, selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { judgedPart } from "./ask-critic.ts";
import { criticAdam, valueLossOptions } from "./critic-options.ts";
import { type Shares, stepInPasses } from "./passes.ts";
import type { Run } from "./run.ts";

export interface CriticUpdate {
  /** One optimizer step; why it was dropped, where it was. */
  take(minibatch: TrainingBatch): Promise<string | undefined>;
  metrics(): Record<string, number>;
}

/** Undefined without a critic. */
export function startCriticUpdate(run: Run, step: number, shares: Shares): CriticUpdate | undefined {
  const { config, critic, plan } = run;
  if (critic === undefined) return undefined;
  const options = valueLossOptions(config);
  const adam = criticAdam(config, step, plan.totalSteps);
  const results: ForwardBackwardResult[] = [];
  const gradNorms: number[] = [];
  let dropped = 0;
  return {
    async take(minibatch) {
      const part = asWhole(selectSequences(minibatch, judgedPart(run, minibatch)));
      if (part.totals.tokens === 0) return undefined;
      try {
        const { result, step } = await stepInPasses(critic, part, valueLoss(part, options), shares(part), adam);
        const { gradNorm, applied } = step;
        if (applied) {
          results.push(result);
          gradNorms.push(gradNorm);
          return undefined;
        }
        dropped++;
        return `the norm of the critic's gradient is ${gradNorm}`;
      } catch (error) {
        if (!(error instanceof NonFiniteLossError)) throw error;
        await critic.zeroGrad();
        dropped++;
        return `critic: ${error.message}`;
      }
    },
    metrics: () => ({
      "critic/lr": adam.learningRate,
      "critic/optimizer_steps": results.length,
      "critic/dropped_not_finite": dropped,
      ...(results.length === 0 ? {} : { "critic/grad_norm": mean(gradNorms) }),
      ...averageMetrics(addMetrics(results.map(({ metrics }) => metrics))),
    }),
  };
}
