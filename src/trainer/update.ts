/**
 * The update of a step: prepares the batch (log-probabilities to compare with, penalties, off-policy correction), then
 * takes optimizer steps.
 *
 * Ratios compare the current policy with the one that sampled. Sampler and trainer compute the same log-probabilities with different
 * kernels: they agree to about 1e-5 in float32 and differ by about 0.02 nats per token in bfloat16. Therefore the old
 * log-probabilities are the trainer's own by default. A batch of one optimizer step takes them from that step's forward pass (the
 * ratio is exactly 1, nothing is computed twice); several steps need one forward before the first. `bypass_mode` uses the sampler's
 * instead, if these are the model's own (`processed` ones are not: then the trainer's, with a warning). `tis_mode` and `rs_mode`
 * compare the two before the first step and need that forward too; with `bypass_mode` all their weights would be 1, so the
 * combination is refused. Masked tokens leave the batch with its denominators; weights multiply only the policy term.
 */
import {
  discountAdvantages,
  normalizeAdvantages,
  sequencesThatNeed,
  type TokenAdvantageOptions,
} from "../algorithms/advantages.ts";
import { type TeacherAdvantageOptions, teacherAdvantages } from "../algorithms/distillation.ts";
import { optimalTokenBaseline } from "../algorithms/estimators.ts";
import { type KlOptions, type KlTerm, klPenalty, nextKlWeight, penalizeAdvantages } from "../algorithms/kl.ts";
import {
  type ImportanceOptions,
  importanceWeights,
  type RejectionRule,
  rejectionMask,
  samplerMismatch,
} from "../algorithms/off-policy.ts";
import {
  informativeSequences,
  lossPart,
  type PolicyLossOptions,
  policyLoss,
  readsSampler,
  tokenWeight,
} from "../algorithms/policy-loss.ts";
import type { Learner } from "../backends/engine.ts";
import { RunError, UserError } from "../base/errors.ts";
import { addMetrics, averageMetrics, deriveSeed, mean, valuesAt } from "../base/values.ts";
import { countsOf, keepTokens, selectSequences, splitBatch, trainedPositions } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import {
  type AdamOptions,
  adamAt,
  allAtOnce,
  type CriticOptions,
  criticStepMetrics,
  estimateValues,
  type Microbatches,
  noSteps,
  policyStepMetrics,
  takeCriticStep,
  takeStep,
} from "./optimizer-steps.ts";
import type { Models } from "./state.ts";
import { learnFromTeacher, overlapRatio, type TeacherScores, type TeacherTerm, teacherMetrics } from "./teachers.ts";
import { recordTokens, type TokenRecord } from "./token-record.ts";

// Prepares a batch for training: log-probabilities to compare with, penalties, off-policy correction.

export interface CorrectionOptions {
  weights: ImportanceOptions | undefined;
  rules: readonly RejectionRule[];
}

interface PrepareOptions {
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

interface Prepared {
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
async function prepareBatch(
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
    const judged = await estimateValues(critic, batch, rewards, penalties, options);
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

// Turns one batch into optimizer steps: minibatches, losses, and the critic's part.

export interface UpdateOptions {
  loss: Omit<PolicyLossOptions, "kl">;
  kl: KlOptions | undefined;
  prepare: PrepareOptions;
  /** Times that the batch is learned from. */
  epochs: number;
  /** Optimizer steps of an epoch. */
  minibatches: number;
  seed: number;
  adam: AdamOptions;
  critic: CriticOptions;
  /** Undefined: teachers act on the advantages, or there are none. */
  teacher: TeacherTerm | undefined;
}

export interface UpdateContext {
  /** Counts from 1. */
  step: number;
  /** The current weight of an adaptive KL term; undefined before its first change. */
  klWeight: number | undefined;
  /** Which sequences go into each microbatch of an optimizer step. */
  microbatches?: Microbatches;
  /** What teachers say of the batch. */
  scores?: TeacherScores | undefined;
  onProgress(done: number, total: number): void;
}

export interface Update {
  metrics: Record<string, number>;
  /** The weight for the next step. */
  klWeight: number | undefined;
  /** Why an optimizer step was dropped: a loss or gradient that is not finite. */
  failure: string | undefined;
  /** What was computed for each token. */
  tokens: TokenRecord;
}

/**
 * Trains on a batch: epochs of optimizer steps, one per minibatch. Sequences that cannot contribute a gradient count in
 * the denominators and cost nothing else; a minibatch without any signal is not a step. A critic learns from the same
 * minibatches, from all of their tokens; in its warm-up it learns alone.
 */
export async function updatePolicy(
  models: Pick<Models, "learner" | "reference" | "critic">,
  rawBatch: TrainingBatch,
  options: UpdateOptions,
  { step, klWeight: knownWeight, microbatches = allAtOnce, scores, onProgress }: UpdateContext,
): Promise<Update> {
  const { learner, critic } = models;
  const kl = options.kl && { ...options.kl, weight: knownWeight ?? options.kl.weight };
  const loss = {
    ...options.loss,
    ...(kl?.in === "loss" ? { kl } : {}),
    ...(options.teacher ? { trainsAll: true } : {}),
  };
  const penalty = kl?.in === "reward" ? kl : undefined;
  const { batch, ...prepared } = await prepareBatch(models, rawBatch, options.prepare, loss, penalty, scores);
  const tokens = recordTokens(batch, scores);
  const adam = adamAt(options.adam, step);
  const criticStep = {
    loss: options.critic.loss,
    adam: adamAt(options.critic.adam, step),
    microbatches,
    advantages: options.prepare.advantages,
  };
  const criticAlone = critic !== undefined && step <= options.critic.warmupSteps;
  const total = batch.sequences.length * options.epochs;
  const [steps, criticSteps] = [noSteps(), noSteps()];
  let withoutSignal = 0;
  let mismatch: Record<string, number> = {};
  let failure: string | undefined;
  let done = 0;

  for (let epoch = 0; epoch < options.epochs; epoch++) {
    const seed = deriveSeed(options.seed, "minibatches", step, epoch);
    for (const minibatch of splitBatch(batch, options.minibatches, seed)) {
      if (critic) failure = (await takeCriticStep(criticSteps, critic, minibatch, criticStep)) ?? failure;
      const part = lossPart(minibatch, loss);
      if (part.sequences.length === 0) withoutSignal++;
      else if (!criticAlone) {
        const constants = { ...loss.constants, seed: deriveSeed(seed, "loss", steps.results.length) };
        const own = policyLoss(part, { ...loss, constants }, tokens.watch(part));
        const taught =
          options.teacher && scores ? withTeacherTerm(learner, part, scores, options.teacher, loss) : learner;
        const dropped = await takeStep(steps, taught, part, own, microbatches, adam);
        if (dropped === undefined) tokens.outputs(part, steps.results.at(-1)!.outputs);
        failure = dropped ?? failure;
        // Only the first minibatch is comparable: later ones are trained with newer weights than they were sampled with.
        const [first] = steps.results;
        if (first && dropped === undefined && steps.results.length === 1 && prepared.comparable) {
          mismatch = samplerMismatch(first.outputs.logprobs, part.samplerLogprobs);
        }
      }
      done += minibatch.sequences.length;
      onProgress(done, total);
    }
  }

  const merged = averageMetrics(addMetrics(steps.results.map(({ metrics }) => metrics)));
  const distance = prepared.kl ?? merged["actor/kl_loss"];
  const metrics: Record<string, number> = {
    ...policyStepMetrics(steps),
    "update/without_signal": withoutSignal,
    ...prepared.metrics,
    ...(critic ? criticStepMetrics(criticSteps, criticStep.adam) : {}),
    "actor/lr": adam.learningRate,
  };
  if (kl) metrics["actor/kl_coef"] = kl.weight;
  // Sampled tokens are drawn from the policy, so the mean of their negative log-probabilities estimates the entropy.
  if (batch.samplerLogprobs.length > 0 && !batch.processed) metrics["actor/entropy"] = -mean(batch.samplerLogprobs);
  return {
    failure,
    tokens,
    klWeight:
      kl && kl.target !== null && distance !== undefined
        ? nextKlWeight(kl.weight, distance, batch.sequences.length, kl)
        : knownWeight,
    metrics: { ...metrics, ...merged, ...mismatch },
  };
}

/** The loss against the teacher has the weights of the policy loss's tokens. */
function withTeacherTerm(
  learner: Learner,
  part: TrainingBatch,
  scores: TeacherScores,
  term: TeacherTerm,
  options: UpdateOptions["loss"],
): Learner {
  const counts = countsOf(part.offsets);
  return learnFromTeacher(learner, part, scores, term, (sequence) =>
    tokenWeight(options.aggMode ?? "token-mean", counts[sequence]!, part.totals, options),
  );
}
