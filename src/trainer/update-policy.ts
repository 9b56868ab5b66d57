/** One batch into optimizer steps: references, minibatches, losses. Everything numeric is algorithms' or the engine's. */
import { informativeSequences, type PolicyLossOptions, policyLoss } from "../algorithms/policy-loss.ts";
import { samplerMismatch } from "../algorithms/sampler-mismatch.ts";
import { NonFiniteLossError } from "../backends/check-loss-value.ts";
import type { AdamParams, ForwardBackwardResult, Policy } from "../backends/engine.ts";
import { deriveSeed } from "../random.ts";
import { mean } from "../statistics.ts";
import { selectSequences } from "../trajectories/batch.ts";
import { splitBatch } from "../trajectories/split-batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { adamParams, policyLossOptions } from "./algorithm-options.ts";
import type { Run } from "./run.ts";

export interface Update {
  metrics: Record<string, number>;
  /** Why an optimizer step was dropped: a loss or gradient that is not finite. */
  failure: string | undefined;
}

/**
 * Trains on a batch: `ppo_epochs` passes of `num_minibatches` optimizer steps. Sequences that cannot contribute a
 * gradient are counted in the denominators and otherwise cost nothing; a minibatch without any signal is no step.
 */
export async function updatePolicy(run: Run, rawBatch: TrainingBatch, step: number): Promise<Update> {
  const { config, plan } = run;
  const options = policyLossOptions(config);
  const batch = await withLogprobs(run, rawBatch, options);
  const adam = adamParams(config, step, plan.totalSteps);
  const total = batch.sequences.length * config.training.ppo_epochs;
  const counts = { "update/optimizer_steps": 0, "update/without_signal": 0, "update/dropped_not_finite": 0 };
  const results: ForwardBackwardResult[] = [];
  const gradNorms: number[] = [];
  let mismatch: Record<string, number> = {};
  let failure: string | undefined;
  let done = 0;

  for (let pass = 0; pass < config.training.ppo_epochs; pass++) {
    const seed = deriveSeed(config.rllm.trainer.seed, "minibatches", step, pass);
    for (const minibatch of splitBatch(batch, config.training.num_minibatches, seed)) {
      const part = selectSequences(minibatch, informativeSequences(minibatch, options));
      if (part.sequences.length === 0) counts["update/without_signal"]++;
      else {
        const taken = await takeStep(run, part, options, adam);
        if ("failure" in taken) {
          counts["update/dropped_not_finite"]++;
          failure = taken.failure;
        } else {
          // Later minibatches are sampled under older weights than they are trained under: only the first tells.
          if (results.length === 0) mismatch = samplerMismatch(taken.result.outputs.logprobs, part.samplerLogprobs);
          counts["update/optimizer_steps"]++;
          results.push(taken.result);
          gradNorms.push(taken.gradNorm);
        }
      }
      done += minibatch.sequences.length;
      run.emit({ type: "update-progress", step, done, total });
    }
  }
  return {
    failure,
    metrics: {
      ...counts,
      "actor/lr": adam.learningRate,
      // What was sampled is a fair draw from the policy: its mean surprise estimates the entropy for nothing.
      ...(batch.samplerLogprobs.length === 0 ? {} : { "actor/entropy": -mean([...batch.samplerLogprobs]) }),
      ...(results.length === 0
        ? {}
        : { "actor/loss": mean(results.map(({ loss }) => loss)), "actor/grad_norm": mean(gradNorms) }),
      ...mergedMetrics(results),
      ...mismatch,
    },
  };
}

type Taken = { result: ForwardBackwardResult; gradNorm: number } | { failure: string };

async function takeStep(run: Run, part: TrainingBatch, options: PolicyLossOptions, adam: AdamParams): Promise<Taken> {
  const { policy } = run;
  try {
    const result = await policy.forwardBackward(part.sequences, policyLoss(part, options));
    const { gradNorm, applied } = await policy.optimStep(adam);
    return applied ? { result, gradNorm } : { failure: `the gradient's norm is ${gradNorm}` };
  } catch (error) {
    if (!(error instanceof NonFiniteLossError)) throw error;
    await policy.zeroGrad();
    return { failure: error.message };
  }
}

/**
 * Adds the log-probabilities that the loss compares with. The old policy's: the sampler's with bypass_mode; else the
 * trainer's own, which the single optimizer step of a batch gets for nothing (the ratio is 1) and several steps take
 * one forward more for. The reference's: the base model's, where the loss has a KL term.
 */
async function withLogprobs(run: Run, batch: TrainingBatch, options: PolicyLossOptions): Promise<TrainingBatch> {
  const { config, policy, reference } = run;
  const several = config.training.num_minibatches * config.training.ppo_epochs > 1;
  const { bypass_mode } = config.rllm.algorithm.rollout_correction;
  const asked = informativeSequences(batch, options);
  const by = async (model: Policy) => {
    if (asked.length === 0) return new Float32Array(batch.samplerLogprobs.length);
    const sequences = Array.from(asked, (index) => batch.sequences[index]!);
    return spreadTokens(batch, asked, (await model.forward(sequences, {})).logprobs);
  };
  let oldLogprobs: Float32Array | undefined;
  if (bypass_mode) oldLogprobs = batch.samplerLogprobs;
  else if (several) oldLogprobs = await by(policy);
  const referenceLogprobs = reference && (await by(reference));
  return {
    ...batch,
    ...(oldLogprobs ? { oldLogprobs } : {}),
    ...(referenceLogprobs ? { referenceLogprobs } : {}),
  };
}

/** `[N]` of the batch from the values of some of its sequences; the others, which no loss looks at, keep 0. */
function spreadTokens(
  { offsets, samplerLogprobs }: TrainingBatch,
  sequences: Int32Array,
  values: Float32Array,
): Float32Array {
  const whole = new Float32Array(samplerLogprobs.length);
  let position = 0;
  for (const sequence of sequences) {
    const count = offsets[sequence + 1]! - offsets[sequence]!;
    whole.set(values.subarray(position, position + count), offsets[sequence]!);
    position += count;
  }
  return whole;
}

function mergedMetrics(results: readonly ForwardBackwardResult[]): Record<string, number> {
  const sums: Record<string, { sum: number; count: number }> = {};
  for (const { metrics } of results) {
    for (const [name, { sum, count }] of Object.entries(metrics)) {
      const earlier = sums[name] ?? { sum: 0, count: 0 };
      sums[name] = { sum: earlier.sum + sum, count: earlier.count + count };
    }
  }
  return Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));
}
