/**
 * Policy losses that engines compute themselves, from the losses' definitions. A hosted loss is a plain sum over tokens, so
 * each token's weight is multiplied into its advantage. This is exact for losses that are linear in the advantage, and for
 * clipped losses, whose bounds do not depend on a positive factor.
 */
import { rowsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { weightedLikelihood } from "../losses/log-likelihood.ts";
import { definitionOf, type PolicyLossName } from "../losses/policy-losses.ts";
import type { HostedLoss } from "../types.ts";
import {
  hasEntropyBonus,
  isCustom,
  lossOf,
  type PolicyLossOptions,
  selectsByEntropy,
  settingsOf,
  weightOf,
} from "./loss-choice.ts";

/**
 * Undefined if no hosted loss has the same gradient: with a KL term, an entropy bonus, several losses by role, or a loss
 * that depends on the whole batch. Tinker does not limit log-ratios to 20 as Hone does.
 *
 * Without `oldLogprobs` every ratio is 1, so the derivative by a token's log-probability is minus its weighted advantage,
 * as in cross-entropy.
 */
export function hostedLoss(batch: TrainingBatch, options: PolicyLossOptions): HostedLoss | undefined {
  if (options.kl || hasEntropyBonus(options) || selectsByEntropy(options)) return undefined;
  const [loss, ...others] = new Set(batch.roles.map((role) => lossOf(options, role)));
  if (loss === undefined || others.length > 0 || isCustom(loss)) return undefined;
  const settings = settingsOf(options);
  const definition = definitionOf(loss);
  const weights = tokenWeights(batch, options, loss);
  const advantages = batch.advantages.map((advantage, token) => advantage * weights[token]!);
  const { oldLogprobs: logprobs } = batch;
  if (logprobs === undefined || definition.ratio === "none") {
    const factor = definition.slopeAtOne?.(settings);
    return factor === undefined
      ? undefined
      : { ...weightedLikelihood, inputs: { weights: advantages.map((value) => value * factor) } };
  }
  const [weight = 0] = weights;
  const found = definition.onEngine?.(settings, weights.every((other) => other === weight) ? weight : undefined);
  return found && { ...found, inputs: { logprobs, advantages } };
}

/** `[N]` weight of each token's loss. */
function tokenWeights(batch: TrainingBatch, options: PolicyLossOptions, loss: PolicyLossName): Float64Array {
  const weights = new Float64Array(batch.advantages.length).fill(1);
  if (batch.rolloutWeights !== undefined) weights.set(batch.rolloutWeights);
  for (const row of rowsOf(weights, batch.offsets)) {
    const weight = weightOf(options, loss, row.length, batch.totals);
    row.forEach((own, token) => {
      row[token] = own * weight;
    });
  }
  return weights;
}
