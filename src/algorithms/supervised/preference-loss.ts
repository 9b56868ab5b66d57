/** Losses of pairs (direct preference optimization): the chosen reply becomes more likely than the rejected one, relative to the reference. */
import { RunError } from "../../errors.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { type PreferenceConstants, type PreferenceLoss, preferenceLosses } from "../losses/supervised.ts";
import { matchOutputs } from "../policy-loss/aggregation.ts";
import type { Loss } from "../types.ts";

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
