/**
 * Policy losses by the names that Tinker has for them. A hosted loss is a plain sum over tokens, so each token's weight
 * goes into its advantage: exact for losses that are linear in it, and for ppo because a positive factor moves no bound.
 */
import type { TrainingBatch } from "../trajectories/types.ts";
import { tokenWeight } from "./aggregation.ts";
import {
  choosesByEntropy,
  definitionOf,
  hasEntropyBonus,
  isCustom,
  lossOf,
  type PolicyLossOptions,
  settingsOf,
} from "./loss-choice.ts";
import type { LossSettings } from "./losses/sequence-loss.ts";
import type { PolicyLossName } from "./policy-losses.ts";
import type { HostedLoss } from "./types.ts";

/**
 * Undefined where no hosted loss has the same gradient: with a KL term or an entropy bonus, with several losses by role,
 * with losses that Tinker does not have. Hone's limit of log-ratios (20) is not there.
 *
 * Without `oldLogprobs` every ratio is 1: the gradient by a token is then minus its weighted advantage, as that of
 * cross entropy.
 */
export function hostedLoss(batch: TrainingBatch, options: PolicyLossOptions): HostedLoss | undefined {
  if (options.klBeta > 0 || hasEntropyBonus(options) || choosesByEntropy(options)) return undefined;
  const [loss, ...others] = new Set(batch.roles.map((role) => lossOf(options, role)));
  if (loss === undefined || others.length > 0 || isCustom(loss)) return undefined;
  const settings = settingsOf(options, loss);
  const weights = tokenWeights(batch, options, loss);
  const advantages = batch.advantages.map((advantage, token) => advantage * weights[token]!);
  const { oldLogprobs: logprobs } = batch;
  if (logprobs === undefined || loss === "cross_entropy" || loss === "gpg") {
    const factor = slopeAtOne(loss, settings);
    return factor === undefined
      ? undefined
      : { name: "cross_entropy", config: {}, inputs: { weights: advantages.map((value) => value * factor) } };
  }
  const config = configOf(loss, settings, weights);
  return config && { name: loss, config, inputs: { logprobs, advantages } };
}

/** The share of the advantage that is the negated slope by a token whose ratio is 1. */
function slopeAtOne(loss: PolicyLossName, { low, high }: LossSettings): number | undefined {
  if (loss === "cispo") return Math.min(Math.max(1, low), high);
  if (loss === "ppo") return low <= 1 && high >= 1 ? 1 : undefined;
  return loss === "importance_sampling" || loss === "dro" || loss === "cross_entropy" || loss === "gpg" ? 1 : undefined;
}

function configOf(
  loss: PolicyLossName,
  { low, high, dual, droBeta }: LossSettings,
  weights: Float64Array,
): Record<string, number> | undefined {
  if (loss === "importance_sampling") return {};
  if (loss === "cispo" || (loss === "ppo" && dual === Number.POSITIVE_INFINITY)) {
    return { clip_low_threshold: low, clip_high_threshold: high };
  }
  // The square has no advantage to take a token's weight, so all must have the same.
  const [weight = 0] = weights;
  if (loss === "dro" && weights.every((other) => other === weight)) return { beta: droBeta * weight };
  return undefined;
}

/** `[N]` what each token's loss counts. */
function tokenWeights(batch: TrainingBatch, options: PolicyLossOptions, loss: PolicyLossName): Float64Array {
  const { offsets, totals, rolloutWeights } = batch;
  const { aggMode, lossScale, countEps } = options;
  const mode = aggMode ?? definitionOf(loss).aggMode ?? "token-mean";
  const scale = { ...(lossScale === undefined ? {} : { lossScale }), ...(countEps === undefined ? {} : { countEps }) };
  const weights = Float64Array.from(rolloutWeights ?? new Float32Array(batch.advantages.length).fill(1));
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    const [from, to] = [offsets[sequence]!, offsets[sequence + 1]!];
    const weight = tokenWeight(mode, to - from, totals, scale);
    for (let token = from; token < to; token++) weights[token]! *= weight;
  }
  return weights;
}
