/**
 * Policy losses that engines implement, by Tinker's names, or by Hone's for those that Tinker does not have. A hosted loss
 * is a plain sum over tokens, so each token's weight is multiplied into its advantage. This is exact for losses that are
 * linear in the advantage, and for clipped losses, whose bounds do not depend on a positive factor.
 */
import { rowsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import type { PolicyLossName } from "../losses/policy-losses.ts";
import type { LossSettings } from "../losses/sequence-loss.ts";
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
  if (options.klBeta > 0 || hasEntropyBonus(options) || selectsByEntropy(options)) return undefined;
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
  const name = loss === "ppo" && settings.dual !== Number.POSITIVE_INFINITY ? "ppo_dual_clip" : loss;
  const config = configOf(loss, settings, weights);
  return config && { name, config, inputs: { logprobs, advantages } };
}

/** The slope of a token whose ratio is 1, divided by minus its advantage. */
function slopeAtOne(loss: PolicyLossName, { low, high, gspoGradient }: LossSettings): number | undefined {
  if (loss === "cispo") return Math.min(Math.max(1, low), high);
  if (loss === "ppo" || (loss === "gspo" && gspoGradient === "token")) return low <= 1 && high >= 1 ? 1 : undefined;
  return slopeIsOne.has(loss) ? 1 : undefined;
}

const slopeIsOne = new Set<PolicyLossName>(["importance_sampling", "dro", "cross_entropy", "gpg", "sapo"]);

function configOf(
  loss: PolicyLossName,
  { low, high, dual, droBeta, tauPositive, tauNegative, gspoGradient }: LossSettings,
  weights: Float64Array,
): Record<string, number> | undefined {
  const bounds = { clip_low_threshold: low, clip_high_threshold: high };
  if (loss === "importance_sampling") return {};
  if (loss === "ppo") return dual === Number.POSITIVE_INFINITY ? bounds : { ...bounds, dual };
  if (loss === "cispo" || (loss === "gspo" && gspoGradient === "token")) return bounds;
  if (loss === "sapo") return { tau_pos: tauPositive, tau_neg: tauNegative };
  // The squared distance is not multiplied by the advantage, so all tokens need the same weight.
  const [weight = 0] = weights;
  if (loss === "dro" && weights.every((other) => other === weight)) return { beta: droBeta * weight };
  return undefined;
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
