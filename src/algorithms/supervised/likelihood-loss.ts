/** The loss of supervised fine-tuning: weighted negative log-likelihood. A batch's advantages are the weights of its tokens. */
import { rowsOf, trainedTokens } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { weightedLikelihood } from "../losses/log-likelihood.ts";
import { reductions } from "../losses/supervised.ts";
import { matchOutputs } from "../policy-loss/aggregation.ts";
import type { Loss } from "../types.ts";

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
