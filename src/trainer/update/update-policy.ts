/** Turns one batch into optimizer steps: minibatches, losses, and the critic's part. */
import { type KlOptions, nextKlWeight } from "../../algorithms/kl/kl-controller.ts";
import { samplerMismatch } from "../../algorithms/off-policy/sampler-mismatch.ts";
import { tokenWeight } from "../../algorithms/policy-loss/aggregation.ts";
import type { PolicyLossOptions } from "../../algorithms/policy-loss/loss-choice.ts";
import { lossPart, policyLoss } from "../../algorithms/policy-loss/policy-loss.ts";
import type { Learner } from "../../backends/engine.ts";
import { deriveSeed } from "../../random.ts";
import { addMetrics, averageMetrics, mean } from "../../statistics.ts";
import { countsOf, splitBatch } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import type { Models } from "../state.ts";
import type { TeacherScores } from "./ask-teachers.ts";
import { type CriticOptions, criticStepMetrics, takeCriticStep } from "./critic.ts";
import { learnFromTeacher, type TeacherTerm } from "./learn-from-teacher.ts";
import { type AdamOptions, adamAt, allAtOnce, noSteps, policyStepMetrics, type Shares, takeStep } from "./passes.ts";
import { type PrepareOptions, prepareBatch } from "./prepare-batch.ts";
import { recordTokens, type TokenRecord } from "./token-record.ts";

export interface UpdateOptions {
  loss: Omit<PolicyLossOptions, "kl">;
  kl: KlOptions | undefined;
  prepare: PrepareOptions;
  /** Passes over the batch. */
  passes: number;
  /** Optimizer steps of a pass. */
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
  /** Which sequences go into each forward and backward pass of an optimizer step. */
  shares?: Shares;
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
 * Trains on a batch: passes of optimizer steps, one per minibatch. Sequences that cannot contribute a gradient count in
 * the denominators and cost nothing else; a minibatch without any signal is not a step. A critic learns from the same
 * minibatches, from all of their tokens; in its warm-up it learns alone.
 */
export async function updatePolicy(
  models: Pick<Models, "learner" | "reference" | "critic">,
  rawBatch: TrainingBatch,
  options: UpdateOptions,
  { step, klWeight: knownWeight, shares = allAtOnce, scores, onProgress }: UpdateContext,
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
    shares,
    advantages: options.prepare.advantages,
  };
  const criticAlone = critic !== undefined && step <= options.critic.warmupSteps;
  const total = batch.sequences.length * options.passes;
  const [steps, criticSteps] = [noSteps(), noSteps()];
  let withoutSignal = 0;
  let mismatch: Record<string, number> = {};
  let failure: string | undefined;
  let done = 0;

  for (let pass = 0; pass < options.passes; pass++) {
    const seed = deriveSeed(options.seed, "minibatches", step, pass);
    for (const minibatch of splitBatch(batch, options.minibatches, seed)) {
      if (critic) failure = (await takeCriticStep(criticSteps, critic, minibatch, criticStep)) ?? failure;
      const part = lossPart(minibatch, loss);
      if (part.sequences.length === 0) withoutSignal++;
      else if (!criticAlone) {
        const constants = { ...loss.constants, seed: deriveSeed(seed, "loss", steps.results.length) };
        const own = policyLoss(part, { ...loss, constants }, tokens.watch(part));
        const taught =
          options.teacher && scores ? taughtLearner(learner, part, scores, options.teacher, loss) : learner;
        const dropped = await takeStep(steps, taught, part, own, shares, adam);
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
function taughtLearner(
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
