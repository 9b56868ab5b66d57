/** verl's losses and aggregation. */

import { importanceWeights, rejectionMask, rejectionRules } from "../../../src/algorithms/off-policy.ts";
import type { PolicyLossOptions } from "../../../src/algorithms/policy-loss.ts";
import { type AggregationMode, tokenWeight } from "../../../src/algorithms/policy-loss.ts";
import type { PolicyLossName } from "../../../src/algorithms/policy-losses.ts";
import type { BatchTotals } from "../../../src/trajectories/types.ts";
import { type Deviation, type Families, family, type VectorCase } from "./family.ts";
import { klName } from "./kl.ts";
import {
  batchOf,
  type Evaluated,
  evaluateLoss,
  type LossInputs,
  type Matrix,
  ragged,
  raggedOffsets,
  spread,
  times,
} from "./loss-batch.ts";
import { inSingle } from "./off-policy.ts";
import { offPolicyMetrics } from "./off-policy-metrics.ts";

const part = (name: string, index: number) => name.split("/")[index]!;

interface VerlParams {
  clip_ratio_low: number;
  clip_ratio_high: number;
  clip_ratio_c?: number;
  loss_agg_mode: AggregationMode;
  tau_pos?: number;
  tau_neg?: number;
  clip_cov_ratio?: number;
  clip_cov_lb?: number;
  clip_cov_ub?: number;
  kl_cov_ratio?: number;
  ppo_kl_coef?: number;
  entropy_coeff?: number;
  use_kl_loss?: boolean;
  kl_loss_coef?: number;
  kl_loss_type?: string;
  global_batch_info?: Record<"dp_size" | "batch_num_tokens" | "global_batch_size" | "loss_scale_factor", number | null>;
}

/** Batches without trained tokens, where upstream divides by zero. */
const emptyIsNothing = ({ outputs }: VectorCase<unknown, unknown>): Deviation | undefined =>
  Number.isNaN((outputs as { loss: number }).loss)
    ? { why: "an empty batch contributes 0; upstream divides 0 by 0", instead: { loss: 0 } }
    : undefined;

const verlNames: Record<string, PolicyLossName> = { vanilla: "ppo", dual_clip: "ppo", geo_mean: "gmpo" };
/** Losses with their own aggregation, regardless of verl's setting. */
const verlForced = new Set<PolicyLossName>(["gspo", "sapo", "gmpo"]);

function verlOptions(lossFn: PolicyLossName, params: VerlParams): Partial<PolicyLossOptions> {
  const constants: Record<string, number | undefined> = {
    tau_pos: params.tau_pos,
    tau_neg: params.tau_neg,
    clip_cov_ratio: params.clip_cov_ratio,
    clip_cov_lb: params.clip_cov_lb,
    clip_cov_ub: params.clip_cov_ub,
    kl_cov_ratio: params.kl_cov_ratio,
    ppo_kl_coef: params.ppo_kl_coef,
    clip_ratio_c: params.clip_ratio_c,
  };
  for (const [name, value] of Object.entries(constants)) if (value === undefined) delete constants[name];
  return {
    lossFn,
    epsClip: params.clip_ratio_low,
    epsClipHigh: params.clip_ratio_high,
    aggMode: verlForced.has(lossFn) ? null : params.loss_agg_mode,
    countEps: lossFn === "gmpo" ? 0 : 1e-8,
    constants,
  };
}

/** verl divides metrics by the number of tokens plus 1e-8, Hone by the number of tokens. */
function verlMetrics({ metrics, tokens, loss }: Evaluated, coefficient = 0): Record<string, number> {
  const masked = (value: number) => (value * tokens) / (tokens + 1e-8);
  return {
    "actor/pg_clipfrac": masked(metrics["actor/pg_clipfrac"] ?? 0),
    "actor/pg_clipfrac_lower": masked(metrics["actor/pg_clipfrac_lower"] ?? 0),
    "actor/ppo_kl": masked(metrics["actor/ppo_kl"] ?? 0),
    // verl adds the other terms to the tensor that it reports.
    "actor/pg_loss": loss,
    "actor/entropy_loss": metrics["actor/entropy_loss"] ?? 0,
    kl_loss: metrics["actor/kl_loss"] ?? 0,
    kl_coef: coefficient,
  };
}

interface VerlInputs extends LossInputs {
  rollout_is_weights?: Matrix | null;
}

const withWeights = ({ rollout_is_weights: weights, mask }: VerlInputs) =>
  weights ? { rolloutWeights: ragged(weights, mask) } : {};

/** The recorded verl did not divide `seq-mean-token-sum-norm` by the number of sequences; later ones do, as Hone. */
const notDivided = { sequences: 1 };

const verlLoss = family<VerlInputs, VerlParams>(({ name, inputs, params }) => {
  const lossFn = verlNames[part(name, 2)] ?? (part(name, 2) as PolicyLossName);
  const info = params.global_batch_info;
  const totals: Partial<BatchTotals> = {
    ...(info?.batch_num_tokens ? { tokens: info.batch_num_tokens } : {}),
    ...(info?.global_batch_size ? { sequences: info.global_batch_size } : {}),
    // GMPO's mean is over all rows, including rows without tokens.
    ...(lossFn === "gmpo" ? { sequences: inputs.mask.length } : {}),
    ...(params.loss_agg_mode === "seq-mean-token-sum-norm" ? notDivided : {}),
  };
  const scale = info?.loss_scale_factor ? { lossScale: info.loss_scale_factor } : {};
  const batch = { ...batchOf(inputs, totals), ...withWeights(inputs) };
  const got = evaluateLoss(inputs, { ...verlOptions(lossFn, params), ...scale }, batch);
  // Data-parallel ranks average their gradients, so each multiplies by the number of ranks, unless the scale is fixed.
  const ranks = params.loss_agg_mode === "seq-mean-token-sum-norm" ? 1 : (info?.dp_size ?? 1);
  // verl's metrics do not use the global number of tokens.
  const own = (got.tokens / batch.totals.tokens) ** -1;
  const metrics = verlMetrics(got);
  for (const key of ["actor/pg_clipfrac", "actor/pg_clipfrac_lower"]) metrics[key]! *= own;
  return { loss: ranks * got.loss, grad_logprob: times(ranks, got.grad_logprob), metrics };
}, emptyIsNothing);

const verlActor = family<LossInputs, VerlParams>(({ inputs, params }) => {
  const { use_kl_loss, kl_loss_coef = 0, kl_loss_type = "k3", entropy_coeff = 0 } = params;
  const got = evaluateLoss(inputs, {
    ...verlOptions("ppo", params),
    ...(use_kl_loss ? { kl: { weight: kl_loss_coef, estimator: klName(kl_loss_type)! } } : {}),
    // verl reports the entropy even without a bonus. Hone computes it only with a bonus, so the bonus here is 0.
    entropyCoeff: entropy_coeff || Number.MIN_VALUE,
  });
  return { ...got, metrics: verlMetrics(got, kl_loss_coef) };
}, emptyIsNothing);

/** REINFORCE with the weights of a ratio, detached: gpg with `rolloutWeights`. */
const verlReinforce = family<VerlInputs, VerlParams>(({ inputs, params }) => {
  const batch = { ...batchOf(inputs), ...withWeights(inputs) };
  const got = evaluateLoss(inputs, { lossFn: "gpg", aggMode: params.loss_agg_mode, countEps: 1e-8 }, batch);
  return { ...got, metrics: verlMetrics(got) };
}, emptyIsNothing);

interface BypassParams extends VerlParams {
  loss_type: "ppo_clip" | "reinforce";
  rollout_is: "token" | "sequence" | null;
  rollout_is_threshold: number;
  rollout_rs: string | null;
  rollout_rs_threshold: string | number | null;
}

const verlBypass = family<LossInputs, BypassParams>(({ inputs, params }) => {
  const { loss_type, rollout_is: level, rollout_is_threshold: cap, rollout_rs, rollout_rs_threshold } = params;
  const [trainer, sampler] = [ragged(inputs.logprobs, inputs.mask), ragged(inputs.old_logprobs, inputs.mask)];
  const offsets = raggedOffsets(inputs.mask);
  const corrected = level === null ? undefined : importanceWeights(trainer, sampler, offsets, { level, cap });
  const rules =
    rollout_rs === null ? [] : rejectionRules(rollout_rs.split(","), String(rollout_rs_threshold).split(","));
  const rejected = rejectionMask(trainer, sampler, offsets, rules);
  const kept = { ...inputs, mask: spread(rejected.keep, inputs.mask) };
  const weights = corrected?.weights.filter((_, token) => rejected.keep[token] === 1);
  const reinforce = loss_type === "reinforce";
  const batch = { ...batchOf(kept), ...(reinforce && weights ? { rolloutWeights: weights } : {}) };
  const got = evaluateLoss(kept, verlOptions(reinforce ? "gpg" : "ppo", params), batch);
  const correction = {
    ...offPolicyMetrics(trainer, sampler, offsets),
    ...inSingle(corrected?.metrics ?? {}, level),
    ...(rules.length === 0 ? {} : inSingle(rejected.metrics)),
  };
  const named = Object.entries(correction).map(([key, value]) => [`rollout_corr/${key}`, value]);
  return { ...got, metrics: { ...verlMetrics(got), ...Object.fromEntries(named) } };
}, emptyIsNothing);

interface AggregationParams {
  loss_agg_mode: AggregationMode;
  loss_scale_factor?: number;
  dp_size?: number;
  batch_num_tokens?: number;
  global_batch_size?: number;
}

const verlAggregation = family<{ loss_mat: Matrix; loss_mask: Matrix }, AggregationParams>(({ inputs, params }) => {
  const { loss_mask: mask, loss_mat: losses } = inputs;
  const counts = mask.map((row) => row.filter((flag) => flag === 1).length);
  const totals = {
    tokens: params.batch_num_tokens ?? counts.reduce((total, count) => total + count, 0),
    sequences: params.global_batch_size ?? counts.filter((count) => count > 0).length,
    longest: mask[0]!.length,
    ...(params.loss_agg_mode === "seq-mean-token-sum-norm" ? notDivided : {}),
  };
  const scale = { countEps: 1e-8, ...(params.loss_scale_factor ? { lossScale: params.loss_scale_factor } : {}) };
  const ranks = params.loss_agg_mode === "seq-mean-token-sum-norm" ? 1 : (params.dp_size ?? 1);
  const weights = mask.map((row, b) => {
    const weight = ranks * tokenWeight(params.loss_agg_mode, counts[b]!, totals, scale);
    return row.map((flag) => flag * weight);
  });
  const terms = weights.flatMap((row, b) => row.map((weight, t) => weight * losses[b]![t]!));
  return { loss: terms.reduce((total, term) => total + term, 0), grad_loss_mat: weights };
}, emptyIsNothing);

export const lossFamilies: Families = {
  "verl/loss": verlLoss,
  "verl/loss/reinforce": verlReinforce,
  "verl/loss/bypass": verlBypass,
  "verl/ppo_loss": verlActor,
  "verl/agg_loss": verlAggregation,
};
