/** What a batch needs before it is trained on: log-probabilities to compare with, penalties, off-policy correction. */

import { klPenalty, penalizeAdvantages } from "../algorithms/kl-penalty.ts";
import { importanceWeights } from "../algorithms/off-policy/importance-weights.ts";
import { informativeSequences, type PolicyLossOptions, readsSampler } from "../algorithms/policy-loss.ts";
import { rejectionMask } from "../algorithms/rejection.ts";
import { discountAdvantages, normalizeAdvantages } from "../algorithms/token-advantages.ts";
import type { Learner } from "../backends/engine.ts";
import { keepTokens, selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { askCritic } from "./ask-critic.ts";
import { compareByTokens } from "./compare-by-tokens.ts";
import { advantageOptions } from "./credit-options.ts";
import { type CorrectionOptions, correctionOptions, correctsProcessed } from "./loss-options.ts";
import type { Run } from "./run.ts";

export interface Prepared {
  batch: TrainingBatch;
  /** Whether `samplerLogprobs` are what the sampler said of its model, so that the trainer's can be held against them. */
  comparable: boolean;
  metrics: Record<string, number>;
  /** The KL to the reference, where it was taken from the reward. */
  kl: number | undefined;
}

/**
 * Adds the log-probabilities that the loss compares with. The old policy's: the sampler's with bypass_mode; else the
 * trainer's own, which the single optimizer step of a batch gets for nothing (the ratio is 1) and several steps, or
 * off-policy correction, take one forward more for. The reference's: the base model's, where it is compared with.
 *
 * @param klWeight of the penalty, with use_kl_in_reward
 */
export async function prepareBatch(
  run: Run,
  givenBatch: TrainingBatch,
  options: PolicyLossOptions,
  klWeight: number,
): Promise<Prepared> {
  const { config, learner, reference } = run;
  const { algorithm } = config.rllm;
  const { bypass_mode } = algorithm.rollout_correction;
  const several = config.training.num_minibatches * config.training.ppo_epochs > 1;
  const correction = correctionOptions(config);
  const corrects = correction.weights !== undefined || correction.rules.length > 0;

  const reliesOnSampler = (several && bypass_mode === true) || algorithm.use_kl_in_reward || readsSampler(options);
  const told = await modelsOwnLogprobs(run, givenBatch, { corrects, needed: reliesOnSampler });
  const rawBatch = told.batch;
  const comparable = !givenBatch.processed;

  const discounted = { ...rawBatch, advantages: discountAdvantages(rawBatch, algorithm.gamma) };
  const penalized =
    reference && algorithm.use_kl_in_reward
      ? await penalize(discounted, reference, {
          weight: klWeight,
          estimator: algorithm.kl_estimator,
          gamma: algorithm.gamma,
        })
      : { batch: discounted, metrics: {}, kl: undefined, penalties: undefined };
  const judged = run.critic
    ? await askCritic(run, run.critic, penalized.batch, rawBatch.advantages, penalized.penalties)
    : { batch: penalized.batch, metrics: {} };
  const compared = await compareByTokens(run, judged.batch);
  const normalised = normalizeAdvantages(compared, advantageOptions(config, run.experiment.estimators));
  const made = { ...told.metrics, ...penalized.metrics, ...judged.metrics, ...normalised.metrics };
  let batch: TrainingBatch = { ...compared, advantages: normalised.advantages };
  const asked = informativeSequences(batch, options);
  if (reference && batch.referenceLogprobs === undefined) {
    batch = { ...batch, referenceLogprobs: await logprobsBy(reference, batch, asked) };
  }
  const trainer = corrects || (several && !bypass_mode) ? await logprobsBy(learner, batch, asked) : undefined;
  // Of a single step the ratio is 1 where the sampler's own words are not to be had.
  const sampler = batch.processed ? undefined : batch.samplerLogprobs;
  const oldLogprobs = bypass_mode ? sampler : trainer;
  if (oldLogprobs) batch = { ...batch, oldLogprobs };
  if (!trainer || !corrects) return { batch, comparable, metrics: made, kl: penalized.kl };
  const corrected = correct(batch, trainer, asked, correction);
  return { ...corrected, comparable, metrics: { ...made, ...corrected.metrics }, kl: penalized.kl };
}

/**
 * What the sampler said is replaced by what the trainer's weights say, where it is of another distribution than the
 * model's own and something relies on it: one forward, counted in `rollout/recomputed_logprobs`.
 *
 * @throws UserError with off-policy correction, which would correct nothing then
 */
async function modelsOwnLogprobs(
  { learner, engine }: Run,
  batch: TrainingBatch,
  { corrects, needed }: { corrects: boolean; needed: boolean },
): Promise<Pick<Prepared, "batch" | "metrics">> {
  if (!batch.processed) return { batch, metrics: {} };
  if (corrects) throw correctsProcessed(engine.capabilities.engine);
  if (!needed) return { batch, metrics: { "rollout/recomputed_logprobs": 0 } };
  const { processed: _, ...rest } = batch;
  const samplerLogprobs = await logprobsBy(learner, batch, Int32Array.from(batch.sequences.keys()));
  return {
    batch: { ...rest, samplerLogprobs },
    metrics: { "rollout/recomputed_logprobs": samplerLogprobs.length },
  };
}

async function penalize(
  batch: TrainingBatch,
  reference: Learner,
  { gamma, ...options }: Parameters<typeof klPenalty>[3] & { gamma: number },
): Promise<Omit<Prepared, "comparable"> & { penalties: Float32Array }> {
  const { offsets } = batch;
  const referenceLogprobs = await logprobsBy(reference, batch, Int32Array.from(batch.sequences.keys()));
  const { penalties, kl } = klPenalty(batch.samplerLogprobs, referenceLogprobs, offsets, options);
  const advantages = penalizeAdvantages(batch.advantages, penalties, offsets, { gamma });
  return {
    batch: { ...batch, advantages, referenceLogprobs },
    metrics: { "actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": options.weight },
    kl,
    penalties,
  };
}

/** Weights on the tokens of the sequences that are trained on; tokens that a rule rejects are trained on no more. */
function correct(
  batch: TrainingBatch,
  trainer: Float32Array,
  asked: Int32Array,
  { weights: weighting, rules }: CorrectionOptions,
): Pick<Prepared, "batch" | "metrics"> {
  const part = selectSequences({ ...batch, oldLogprobs: trainer }, asked);
  const { oldLogprobs: current, samplerLogprobs: sampler, offsets } = part;
  const found: Record<string, number> = {};
  let corrected = batch;
  if (weighting) {
    const { weights, metrics } = importanceWeights(current!, sampler, offsets, weighting);
    Object.assign(found, metrics);
    corrected = { ...corrected, rolloutWeights: spreadTokens(batch, asked, weights, 1) };
  }
  if (rules.length > 0) {
    const { keep, metrics } = rejectionMask(current!, sampler, offsets, rules);
    Object.assign(found, metrics);
    const kept = spreadTokens(batch, asked, Float32Array.from(keep), 1);
    corrected = keepTokens(corrected, Uint8Array.from(kept));
  }
  return {
    batch: corrected,
    metrics: Object.fromEntries(Object.entries(found).map(([name, value]) => [`rollout_corr/${name}`, value])),
  };
}

/** `[N]` log-probabilities of the batch's tokens; those of sequences that nobody asks for are 0. */
async function logprobsBy(model: Learner, batch: TrainingBatch, asked: Int32Array): Promise<Float32Array> {
  if (asked.length === 0) return new Float32Array(batch.samplerLogprobs.length);
  const sequences = Array.from(asked, (index) => batch.sequences[index]!);
  return spreadTokens(batch, asked, (await model.forward(sequences, {})).logprobs, 0);
}

/** `[N]` of the batch from the values of some of its sequences, and `elsewhere` on the others. */
function spreadTokens(
  { offsets, samplerLogprobs }: TrainingBatch,
  sequences: Int32Array,
  values: Float32Array,
  elsewhere: number,
): Float32Array {
  const whole = new Float32Array(samplerLogprobs.length).fill(elsewhere);
  let position = 0;
  for (const sequence of sequences) {
    const count = offsets[sequence + 1]! - offsets[sequence]!;
    whole.set(values.subarray(position, position + count), offsets[sequence]!);
    position += count;
  }
  return whole;
}
