/** The losses of `hone sft` (likelihood) and `hone dpo` (preferences), by their names in the configuration. */
import { RunError } from "../base/errors.ts";
import { rowsOf, trainedTokens } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { matchOutputs } from "./policy-loss.ts";
import { weightedLikelihood } from "./policy-losses.ts";
import type { Loss } from "./types.ts";

// The reductions of `hone sft` and the losses of `hone dpo`, by their names in the configuration.

/** What a token's weight is divided by. An example is a row, which may be several sequences. */
export const reductions = {
  /** Every token of the batch counts the same (TRL, verl). */
  "token-mean": ({ batch }) => batch,
  /** rLLM on Tinker. */
  "token-sum": () => 1,
  /** Every example counts the same. */
  "example-mean": ({ example, examples }) => example * examples,
  /** The Tinker cookbook's: not divided by the number of examples. */
  "example-mean-sum": ({ example }) => example,
} as const satisfies Record<string, (sums: WeightSums) => number>;

/** Sums of weights: of the batch and of the token's example; and the number of examples with a trained token. */
interface WeightSums {
  batch: number;
  example: number;
  examples: number;
}

interface PreferenceConstants {
  beta: number;
  /** The probability that a pair's label is wrong. */
  smoothing: number;
}

export interface PreferenceLoss {
  /** Replies are compared by the means over their tokens instead of the sums. */
  byMean?: true;
  /** @param difference of the log-ratios to the reference, chosen minus rejected @returns the loss and its derivative */
  evaluate(difference: number, constants: PreferenceConstants): [loss: number, slope: number];
}

/** `log(sigmoid(x))`, without overflow. */
const logSigmoid = (x: number) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x)));
const sigmoid = (x: number) => Math.exp(logSigmoid(x));

/** The losses under TRL's names. */
export const preferenceLosses = {
  /** arXiv 2305.18290 */
  sigmoid: { evaluate: (d, { beta }) => [-logSigmoid(beta * d), -beta * sigmoid(-beta * d)] },
  /** arXiv 2403.00409 */
  robust: {
    evaluate: (d, { beta, smoothing: e }) => [
      (-(1 - e) * logSigmoid(beta * d) + e * logSigmoid(-beta * d)) / (1 - 2 * e),
      (-beta * ((1 - e) * sigmoid(-beta * d) + e * sigmoid(beta * d))) / (1 - 2 * e),
    ],
  },
  /** arXiv 2310.12036 */
  ipo: {
    byMean: true,
    evaluate: (d, { beta }) => [(d - 1 / (2 * beta)) ** 2, 2 * (d - 1 / (2 * beta))],
  },
  /** arXiv 2305.10425 */
  hinge: { evaluate: (d, { beta }) => (beta * d < 1 ? [1 - beta * d, -beta] : [0, 0]) },
  /** `sigmoid` of the means over tokens. */
  sigmoid_norm: {
    byMean: true,
    evaluate: (d, { beta }) => [-logSigmoid(beta * d), -beta * sigmoid(-beta * d)],
  },
} as const satisfies Record<string, PreferenceLoss>;

// The loss of supervised fine-tuning: weighted negative log-likelihood. A batch's advantages are the weights of its tokens.

export interface LikelihoodOptions {
  reduction: keyof typeof reductions;
  /** `dft` multiplies each token's loss by its own probability, which has no gradient (arXiv 2508.05629). */
  lossType: "nll" | "dft";
  /** Whether a token is text; special tokens are not. */
  isText?: (token: number) => boolean;
}

/**
 * Metrics: `sft/nll`, the mean over tokens, and with `isText` also `sft/text_nll`, the mean over tokens of text.
 *
 * @param batch `groups` number its examples
 */
export function likelihoodLoss(batch: TrainingBatch, { reduction, lossType, isText }: LikelihoodOptions): Loss {
  const weights = reducedWeights(batch, reduction);
  return {
    name: lossType,
    outputs: {},
    hosted: () =>
      lossType === "nll" ? { ...weightedLikelihood, inputs: { weights: Float32Array.from(weights) } } : undefined,
    evaluate({ logprobs, offsets }, sequences) {
      // Gradient checks evaluate losses in float64.
      const gradient = new (logprobs.constructor as Float32ArrayConstructor)(logprobs.length);
      let loss = 0;
      const likelihood = { sum: 0, count: 0 };
      const text = { sum: 0, count: 0 };
      for (const { sequence, from, start, trained } of matchOutputs(batch.offsets, offsets, sequences)) {
        const ids = isText && trainedTokens(batch.sequences[sequence]!);
        for (let token = 0; token < trained; token++) {
          const logprob = logprobs[start + token]!;
          const weight = weights[from + token]! * (lossType === "dft" ? Math.exp(logprob) : 1);
          loss -= weight * logprob;
          likelihood.sum -= batch.advantages[from + token]! * logprob;
          likelihood.count += batch.advantages[from + token]!;
          gradient[start + token] = -weight;
          if (!ids || !isText(ids[token]!)) continue;
          text.sum -= logprob;
          text.count++;
        }
      }
      const metrics = { "sft/nll": likelihood, ...(isText ? { "sft/text_nll": text } : {}) };
      return { loss, gradient: { logprobs: gradient }, metrics };
    },
  };
}

/** `[N]` */
function reducedWeights({ advantages, offsets, groups }: TrainingBatch, reduction: LikelihoodOptions["reduction"]) {
  const byExample = new Map<number, number>();
  const rows = rowsOf(advantages, offsets);
  for (const [sequence, weights] of rows.entries()) {
    const example = groups[sequence]!;
    byExample.set(
      example,
      weights.reduce((sum, weight) => sum + weight, byExample.get(example) ?? 0),
    );
  }
  const sums = [...byExample.values()];
  const batch = sums.reduce((sum, own) => sum + own, 0);
  const examples = sums.filter((own) => own > 0).length;
  const reduced = new Float64Array(advantages.length);
  for (const [sequence, weights] of rows.entries()) {
    const example = byExample.get(groups[sequence]!) ?? 0;
    const divisor = reductions[reduction]({ batch, example, examples });
    for (const [token, weight] of weights.entries()) {
      if (weight !== 0) reduced[offsets[sequence]! + token] = weight / divisor;
    }
  }
  return reduced;
}

// Losses of pairs (direct preference optimization): the chosen reply becomes more likely than the rejected one, relative to the reference.

export interface PreferenceOptions extends PreferenceConstants {
  lossType: keyof typeof preferenceLosses;
}

/** The log-ratios of one reply to the reference, over all of its sequences. */
interface Reply {
  sum: number;
  tokens: number;
}

/**
 * The mean over pairs. Metrics, under the Tinker cookbook's names: `dpo/accuracy`, `dpo/margin`, `dpo/chosen_reward` and
 * `dpo/rejected_reward`, which are beta times the sums of log-ratios.
 *
 * @param batch `groups` number its pairs, and `roles` are "chosen" and "rejected"
 */
export function preferenceLoss(batch: TrainingBatch, { lossType, ...constants }: PreferenceOptions): Loss {
  const { referenceLogprobs: reference, groups, roles } = batch;
  if (reference === undefined)
    throw new RunError("pairs need log-probabilities of the reference, but the batch has none");
  const { byMean, evaluate }: PreferenceLoss = preferenceLosses[lossType];
  return {
    name: `dpo_${lossType}`,
    outputs: {},
    coupled: true,
    evaluate({ logprobs, offsets }, sequences) {
      const matched = matchOutputs(batch.offsets, offsets, sequences);
      const pairs = new Map<number, Record<"chosen" | "rejected", Reply>>();
      const replyOf = (sequence: number) => {
        const pair = pairs.get(groups[sequence]!) ?? { chosen: { sum: 0, tokens: 0 }, rejected: { sum: 0, tokens: 0 } };
        pairs.set(groups[sequence]!, pair);
        return pair[roles[sequence] as "chosen" | "rejected"];
      };
      for (const { sequence, from, start, trained } of matched) {
        const reply = replyOf(sequence);
        reply.tokens += trained;
        for (let token = 0; token < trained; token++) reply.sum += logprobs[start + token]! - reference[from + token]!;
      }
      const value = ({ sum, tokens }: Reply) => (byMean ? sum / tokens : sum);
      const count = pairs.size;
      let loss = 0;
      const slopes = new Map<number, number>();
      for (const [pair, { chosen, rejected }] of pairs) {
        const [own, slope] = evaluate(value(chosen) - value(rejected), constants);
        loss += own / count;
        slopes.set(pair, slope / count);
      }
      const gradient = new (logprobs.constructor as Float32ArrayConstructor)(logprobs.length);
      for (const { sequence, start, trained } of matched) {
        const slope = slopes.get(groups[sequence]!)! * (roles[sequence] === "chosen" ? 1 : -1);
        gradient.fill(byMean ? slope / replyOf(sequence).tokens : slope, start, start + trained);
      }
      const rewards = [...pairs.values()].map(({ chosen, rejected }) =>
        [chosen.sum, rejected.sum].map((sum) => constants.beta * sum),
      );
      const metric = (of: (chosen: number, rejected: number) => number) => ({
        sum: rewards.reduce((sum, [chosen = 0, rejected = 0]) => sum + of(chosen, rejected), 0),
        count,
      });
      const metrics = {
        "dpo/accuracy": metric((chosen, rejected) => Number(chosen > rejected)),
        "dpo/margin": metric((chosen, rejected) => chosen - rejected),
        "dpo/chosen_reward": metric((chosen) => chosen),
        "dpo/rejected_reward": metric((_, rejected) => rejected),
      };
      return { loss, gradient: { logprobs: gradient }, metrics };
    },
  };
}
