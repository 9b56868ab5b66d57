/** Prepares a batch for training: log-probabilities to compare with, penalties, off-policy correction. */

import { sequencesThatNeed } from "../../algorithms/advantages/estimate-advantages.ts";
import {
  discountAdvantages,
  normalizeAdvantages,
  type TokenAdvantageOptions,
} from "../../algorithms/advantages/token-advantages.ts";
import { type TeacherAdvantageOptions, teacherAdvantages } from "../../algorithms/distillation/teacher-advantages.ts";
import { optimalTokenBaseline } from "../../algorithms/estimators/optimal-token-baseline.ts";
import type { KlTerm } from "../../algorithms/kl/kl-estimators.ts";
import { klPenalty, penalizeAdvantages } from "../../algorithms/kl/kl-penalty.ts";
import { type ImportanceOptions, importanceWeights } from "../../algorithms/off-policy/importance-weights.ts";
import { type RejectionRule, rejectionMask } from "../../algorithms/off-policy/rejection.ts";
import { type PolicyLossOptions, readsSampler } from "../../algorithms/policy-loss/loss-choice.ts";
import { informativeSequences } from "../../algorithms/policy-loss/policy-loss.ts";
import { valuesAt } from "../../arrays.ts";
import type { Learner } from "../../backends/engine.ts";
import { RunError, UserError } from "../../errors.ts";
import { keepTokens, selectSequences, trainedPositions } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import type { Models } from "../state.ts";
import { overlapRatio, type TeacherScores, teacherMetrics } from "./ask-teachers.ts";
import { askCritic } from "./critic.ts";

export interface CorrectionOptions {
  weights: ImportanceOptions | undefined;
  rules: readonly RejectionRule[];
}

export interface PrepareOptions {
  /** The engine's name, for errors. */
  engine: string;
  advantages: TokenAdvantageOptions;
  /** Lambda of generalized advantage estimation. */
  lambda: number;
  correction: CorrectionOptions;
  /** Ratios start from the sampler's log-probabilities. */
  bypass: boolean;
  /** More than one optimizer step per batch. */
  severalSteps: boolean;
  /** Adds the difference from a teacher to the advantages. */
  teacher: TeacherAdvantageOptions | undefined;
  /** The loss compares the most likely tokens of a teacher. */
  comparesLikely: boolean;
}

export interface Prepared {
  batch: TrainingBatch;
  /** Whether `samplerLogprobs` can be compared with the trainer's: they are the model's own, as the sampler computed them. */
  comparable: boolean;
  metrics: Record<string, number>;
  /** The KL to the reference, if it was subtracted from the rewards. */
  kl: number | undefined;
}

/**
 * Adds the log-probabilities that the loss compares with. The old policy's: the sampler's with bypass_mode; else the
 * trainer's own, which cost nothing for the single optimizer step of a batch (the ratio is 1) and one more forward for
 * several steps or off-policy correction. The reference's: the base model's.
 *
 * @param penalty the KL that is subtracted from the rewards
 * @param scores what teachers say of the given batch
 */
export async function prepareBatch(
  { learner, reference, critic }: Pick<Models, "learner" | "reference" | "critic">,
  given: TrainingBatch,
  options: PrepareOptions,
  loss: PolicyLossOptions,
  penalty: KlTerm | undefined,
  scores?: TeacherScores,
): Promise<Prepared> {
  const { advantages, bypass, correction, severalSteps } = options;
  const corrects = correction.weights !== undefined || correction.rules.length > 0;
  const metrics: Record<string, number> = {};
  let batch = given;
  if (given.processed) {
    if (corrects) throw correctsProcessed(options.engine);
    const needed = (severalSteps && bypass) || penalty !== undefined || scores !== undefined || readsSampler(loss);
    if (needed) batch = await withModelsLogprobs(learner, given);
    metrics["rollout/recomputed_logprobs"] = needed ? batch.samplerLogprobs.length : 0;
  }
  const rewards = batch.advantages;
  batch = { ...batch, advantages: discountAdvantages(batch, advantages.gamma) };

  let kl: number | undefined;
  let penalties: Float32Array | undefined;
  if (reference && penalty) {
    const referenceLogprobs = await logprobsOf(reference, batch, allSequences(batch));
    const { samplerLogprobs, offsets } = batch;
    ({ penalties, kl } = klPenalty(samplerLogprobs, referenceLogprobs, offsets, penalty));
    const penalized = penalizeAdvantages(batch.advantages, penalties, offsets, { gamma: advantages.gamma });
    batch = { ...batch, advantages: penalized, referenceLogprobs };
    metrics["actor/reward_kl_penalty"] = kl;
    metrics["actor/reward_kl_penalty_coeff"] = penalty.weight;
  }
  if (critic) {
    const judged = await askCritic(critic, batch, rewards, penalties, options);
    batch = judged.batch;
    Object.assign(metrics, judged.metrics);
  }
  batch = await compareByTokens(learner, batch, advantages);
  const normalized = normalizeAdvantages(batch, advantages);
  batch = { ...batch, advantages: normalized.advantages };
  Object.assign(metrics, normalized.metrics);
  if (scores) {
    Object.assign(metrics, teacherMetrics(scores, batch));
    if (options.comparesLikely && learner.mostLikely && batch.sequences.length > 0) {
      metrics["distillation/overlap_ratio"] = await overlapRatio(learner, batch, scores);
    }
    batch = withScores(batch, scores, options.teacher);
  }

  const informative = informativeSequences(batch, loss);
  if (reference && batch.referenceLogprobs === undefined) {
    batch = { ...batch, referenceLogprobs: await logprobsOf(reference, batch, informative) };
  }
  const current = corrects || (severalSteps && !bypass) ? await logprobsOf(learner, batch, informative) : undefined;
  // Ratios cannot start from processed log-probabilities; for a single step the ratio is 1 without them.
  const oldLogprobs = bypass ? (batch.processed ? undefined : batch.samplerLogprobs) : current;
  if (oldLogprobs) batch = { ...batch, oldLogprobs };
  if (corrects && current) {
    const corrected = correct(batch, current, informative, correction);
    batch = corrected.batch;
    Object.assign(metrics, corrected.metrics);
  }
  return { batch, comparable: !given.processed, metrics, kl };
}

/** Numbers the tokens by their scores and, with policy gradient, adds the difference from the teacher to their advantages. */
function withScores(
  batch: TrainingBatch,
  { logprobs }: TeacherScores,
  options: TeacherAdvantageOptions | undefined,
): TrainingBatch {
  const scores = Float32Array.from(logprobs.keys());
  if (!options) return { ...batch, scores };
  const positions = batch.sequences.flatMap(({ trained }) => trainedPositions(trained));
  const added = teacherAdvantages(batch.samplerLogprobs, logprobs, positions, batch.offsets, options);
  return { ...batch, scores, advantages: batch.advantages.map((advantage, token) => advantage + added[token]!) };
}

/**
 * Subtracts the optimal token baseline from the returns of the sequences whose estimators need it, group by group, after
 * one forward of the policy over them. The other sequences keep their advantages.
 *
 * @param batch its advantages are those sequences' returns
 */
async function compareByTokens(
  learner: Learner,
  batch: TrainingBatch,
  options: TokenAdvantageOptions,
): Promise<TrainingBatch> {
  const compared = sequencesThatNeed("concentration", batch.roles, options);
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

/** Off-policy correction compares two models, not a model with a distribution that temperature and filters changed. */
function correctsProcessed(engine: string): UserError {
  return new UserError(
    `rllm.algorithm.rollout_correction needs the model's own log-probabilities, but the engine "${engine}" reports them after temperature, top_p and top_k`,
    { hint: "Sample with temperature=1, top_p=1 and top_k=-1, or remove tis_mode and rs_mode." },
  );
}

/** Replaces the sampler's log-probabilities, which belong to a distribution other than the model's own. */
async function withModelsLogprobs(learner: Learner, given: TrainingBatch): Promise<TrainingBatch> {
  const { processed: _, ...batch } = given;
  return { ...batch, samplerLogprobs: await logprobsOf(learner, batch, allSequences(batch)) };
}

/** Weighs the tokens of these sequences; tokens that a rule rejects are no longer trained on. */
function correct(
  batch: TrainingBatch,
  trainer: Float32Array,
  sequences: Int32Array,
  { weights: weighting, rules }: CorrectionOptions,
): Pick<Prepared, "batch" | "metrics"> {
  const part = selectSequences({ ...batch, oldLogprobs: trainer }, sequences);
  const { oldLogprobs: current = trainer, samplerLogprobs: sampler, offsets } = part;
  const found: Record<string, number> = {};
  let corrected = batch;
  if (weighting) {
    const { weights, metrics } = importanceWeights(current, sampler, offsets, weighting);
    Object.assign(found, metrics);
    corrected = { ...corrected, rolloutWeights: spreadTokens(batch, sequences, weights, 1) };
  }
  if (rules.length > 0) {
    const { keep, metrics } = rejectionMask(current, sampler, offsets, rules);
    Object.assign(found, metrics);
    const kept = spreadTokens(batch, sequences, Float32Array.from(keep), 1);
    corrected = keepTokens(corrected, Uint8Array.from(kept));
  }
  return {
    batch: corrected,
    metrics: Object.fromEntries(Object.entries(found).map(([name, value]) => [`rollout_corr/${name}`, value])),
  };
}

const allSequences = ({ sequences }: TrainingBatch) => Int32Array.from(sequences.keys());

/** `[N]` log-probabilities of the batch's tokens; 0 for all but these sequences. */
async function logprobsOf(model: Learner, batch: TrainingBatch, sequences: Int32Array): Promise<Float32Array> {
  if (sequences.length === 0) return new Float32Array(batch.samplerLogprobs.length);
  const { logprobs } = await model.forward(valuesAt(batch.sequences, sequences), {});
  return spreadTokens(batch, sequences, logprobs, 0);
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
    const [from = 0, to = 0] = offsets.subarray(sequence, sequence + 2);
    whole.set(values.subarray(position, position + to - from), from);
    position += to - from;
  }
  return whole;
}
