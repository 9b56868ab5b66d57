/** One batch into optimizer steps: references, minibatches, losses. Everything numeric is algorithms' or the engine's. */

import { nextKlWeight } from "../algorithms/kl-controller.ts";
import { addMetrics, averageMetrics } from "../algorithms/metric-sums.ts";
import { lossPart, type PolicyLossOptions, policyLoss } from "../algorithms/policy-loss.ts";
import { samplerMismatch } from "../algorithms/sampler-mismatch.ts";
import { NonFiniteLossError } from "../backends/check-loss-value.ts";
import type { AdamParams, ForwardBackwardResult } from "../backends/engine.ts";
import { deriveSeed } from "../random.ts";
import { mean } from "../statistics.ts";
import { splitBatch } from "../trajectories/split-batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { adamParams } from "./algorithm-options.ts";
import { klControllerOptions, policyLossOptions } from "./loss-options.ts";
import { allAtOnce, type Shares, stepInPasses } from "./passes.ts";
import { prepareBatch } from "./prepare-batch.ts";
import type { Run } from "./run.ts";
import { startCriticUpdate } from "./update-critic.ts";

export interface Update {
  metrics: Record<string, number>;
  /** Why an optimizer step was dropped: a loss or gradient that is not finite. */
  failure: string | undefined;
}

/**
 * Trains on a batch: `ppo_epochs` passes of `num_minibatches` optimizer steps. Sequences that cannot contribute a
 * gradient are counted in the denominators and otherwise cost nothing; a minibatch without any signal is no step.
 * A critic learns from the same minibatches, all of their tokens; in its warm-up it learns alone.
 *
 * @param shares what goes into each forward and backward pass of an optimizer step
 */
export async function updatePolicy(
  run: Run,
  rawBatch: TrainingBatch,
  step: number,
  shares: Shares = allAtOnce,
): Promise<Update> {
  const { config, plan, progress } = run;
  const controller = klControllerOptions(config);
  const klWeight = progress.klWeight ?? controller.initial;
  const options = policyLossOptions(config, run.experiment.losses, klWeight);
  const { batch, ...prepared } = await prepareBatch(run, rawBatch, options, klWeight);
  const adam = adamParams(config, step, plan.totalSteps);
  const total = batch.sequences.length * config.training.ppo_epochs;
  const counts = { "update/optimizer_steps": 0, "update/without_signal": 0, "update/dropped_not_finite": 0 };
  const results: ForwardBackwardResult[] = [];
  const gradNorms: number[] = [];
  let mismatch: Record<string, number> = {};
  let failure: string | undefined;
  let done = 0;
  const critic = startCriticUpdate(run, step, shares);
  const criticAlone = critic !== undefined && step <= config.rllm.critic.warmup_steps;

  for (let pass = 0; pass < config.training.ppo_epochs; pass++) {
    const seed = deriveSeed(config.rllm.trainer.seed, "minibatches", step, pass);
    for (const minibatch of splitBatch(batch, config.training.num_minibatches, seed)) {
      failure = (await critic?.take(minibatch)) ?? failure;
      const part = lossPart(minibatch, options);
      if (part.sequences.length === 0) counts["update/without_signal"]++;
      else if (!criticAlone) {
        const chance = deriveSeed(seed, "loss", results.length);
        const own = { ...options, constants: { ...options.constants, seed: chance } };
        const taken = await takeStep(run, part, own, adam, shares);
        if ("failure" in taken) {
          counts["update/dropped_not_finite"]++;
          failure = taken.failure;
        } else {
          // Later minibatches are sampled under older weights than they are trained under: only the first tells.
          if (results.length === 0 && prepared.comparable)
            mismatch = samplerMismatch(taken.result.outputs.logprobs, part.samplerLogprobs);
          counts["update/optimizer_steps"]++;
          results.push(taken.result);
          gradNorms.push(taken.gradNorm);
        }
      }
      done += minibatch.sequences.length;
      run.emit({ type: "update-progress", step, done, total });
    }
  }
  const merged = averageMetrics(addMetrics(results.map(({ metrics }) => metrics)));
  const kl = prepared.kl ?? merged["actor/kl_loss"];
  if (controller.target !== null && kl !== undefined) {
    progress.klWeight = nextKlWeight(klWeight, kl, batch.sequences.length, controller);
  }
  return {
    failure,
    metrics: {
      ...counts,
      ...prepared.metrics,
      ...critic?.metrics(),
      ...(controller.initial > 0 ? { "actor/kl_coef": klWeight } : {}),
      "actor/lr": adam.learningRate,
      // What was sampled is a fair draw from the policy: its mean surprise estimates the entropy for nothing.
      ...(batch.samplerLogprobs.length === 0 || batch.processed
        ? {}
        : { "actor/entropy": -mean([...batch.samplerLogprobs]) }),
      ...(results.length === 0
        ? {}
        : { "actor/loss": mean(results.map(({ loss }) => loss)), "actor/grad_norm": mean(gradNorms) }),
      ...merged,
      ...mismatch,
    },
  };
}

type Taken = { result: ForwardBackwardResult; gradNorm: number } | { failure: string };

async function takeStep(
  run: Run,
  part: TrainingBatch,
  options: PolicyLossOptions,
  adam: AdamParams,
  shares: Shares,
): Promise<Taken> {
  const { learner } = run;
  try {
    const { result, step } = await stepInPasses(learner, part, policyLoss(part, options), shares(part), adam);
    const { gradNorm, applied } = step;
    return applied ? { result, gradNorm } : { failure: `the gradient's norm is ${gradNorm}` };
  } catch (error) {
    if (!(error instanceof NonFiniteLossError)) throw error;
    await learner.zeroGrad();
    return { failure: error.message };
  }
}
