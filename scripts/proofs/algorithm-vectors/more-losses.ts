import { highEntropyCount, largestPositions } from "../../../src/algorithms/loss-definition.ts";
import type { PolicyLossOptions } from "../../../src/algorithms/policy-loss.ts";
import type { PolicyLossName } from "../../../src/algorithms/policy-losses.ts";
import { type Families, family, skipped, type VectorCase } from "./family.ts";
import { batchOf, type Evaluated, evaluateLoss, type LossInputs, type Matrix, ragged } from "./loss-batch.ts";

const part = (name: string, index: number) => name.split("/")[index]!;

interface TinkerParams {
  clip_low_threshold?: number;
  clip_high_threshold?: number;
  beta?: number;
}

/** With `seq-mean-token-sum`: the sum over all tokens. */
const summed = { sequences: 1 };

/** Sums over tokens, as the service does. The bounds apply to the ratio itself. */
const tinkerLoss = family<LossInputs, TinkerParams, { token_loss: Matrix }>(({ name, inputs, params, outputs }) => {
  const lossFn = part(name, 2) as PolicyLossName;
  const options: Partial<PolicyLossOptions> = {
    lossFn,
    epsClip: 1 - (params.clip_low_threshold ?? 0),
    epsClipHigh: (params.clip_high_threshold ?? 1) - 1,
    constants: {
      logRatioLimit: Number.POSITIVE_INFINITY,
      ...(params.beta === undefined ? {} : { dro_beta: params.beta }),
    },
    aggMode: "seq-mean-token-sum",
  };
  // For cross-entropy, advantages are weights; in the recorded cases the weights are the mask.
  const given = lossFn === "cross_entropy" ? { ...inputs, advantages: inputs.mask } : inputs;
  const alone = (b: number, t: number) => {
    const one = (matrix: Matrix) => [[matrix[b]![t]!]];
    const { logprobs, old_logprobs, advantages, mask } = given;
    const token = {
      logprobs: one(logprobs),
      old_logprobs: one(old_logprobs),
      advantages: one(advantages),
      mask: one(mask),
    };
    return evaluateLoss(token, options, batchOf(token, summed)).loss;
  };
  const got = evaluateLoss(given, options, batchOf(given, summed));
  return {
    loss_sum: got.loss,
    grad_logprob: got.grad_logprob,
    token_loss: outputs.token_loss.map((row, b) => row.map((_, t) => alone(b, t))),
  };
});

// ---- LightRFT

interface LightrftParams {
  clip_eps: number;
  high_entropy_ratio?: number;
}

/** Means over rows. LightRFT gives NaN if a row has no token. */
function lightrftLoss(inputs: LossInputs, params: LightrftParams, lossFn: PolicyLossName) {
  const options: Partial<PolicyLossOptions> = {
    lossFn,
    epsClip: params.clip_eps,
    // LightRFT's cpgd has no drift term.
    constants: { logRatioLimit: Number.POSITIVE_INFINITY, cpgd_drift_coef: 0 },
    aggMode: "seq-mean-token-mean",
    countEps: 0,
    ...(params.high_entropy_ratio === undefined ? {} : { highEntropyRatio: params.high_entropy_ratio }),
  };
  return evaluateLoss(inputs, options, batchOf(inputs));
}

const lightrft = (lossFn: PolicyLossName) =>
  family<LossInputs, LightrftParams, { loss: number }>(
    ({ inputs, params }) => lightrftLoss(inputs, params, lossFn),
    ({ inputs, params, outputs }) =>
      Number.isNaN(outputs.loss)
        ? {
            why: "empty rows contribute 0; upstream gives NaN",
            instead: { loss: lightrftLoss(inputs, params, lossFn).loss },
          }
        : undefined,
  );

const lightrftHighEntropy = family<Required<LossInputs>, LightrftParams>(({ inputs, params }) => {
  const kept = inputs.mask.map((row, b) => {
    const positions = [...row.keys()].filter((t) => row[t] === 1);
    const entropies = Float64Array.from(positions, (t) => inputs.entropy[b]![t]!);
    const chosen = largestPositions(entropies, highEntropyCount(positions.length, params.high_entropy_ratio!));
    const at = new Set(Array.from(chosen, (index) => positions[index]));
    return row.map((_, t) => Number(at.has(t)));
  });
  return { ...lightrftLoss(inputs, params, "ppo"), entropy_mask: kept };
});

// ---- SkyRL

interface SkyrlParams {
  eps_clip_low: number;
  eps_clip_high: number;
  clip_ratio_c: number;
  cispo_low: number;
  cispo_high: number;
  tau_pos: number;
  tau_neg: number;
}

const skyrl = (lossFn: PolicyLossName) => family<LossInputs, SkyrlParams>(evaluateSkyrl(lossFn));

/** The losses whose ratio metrics are not compared, because only SkyRL reports them. */
const skyrlWithoutFigures = (lossFn: PolicyLossName) =>
  family<LossInputs, SkyrlParams, object>(evaluateSkyrl(lossFn), ({ outputs }) => ({
    why: "loss and gradient are equal; ratio metrics under SkyRL's names are not reported",
    instead: { ...outputs, metrics: {} },
  }));

const evaluateSkyrl =
  (lossFn: PolicyLossName) =>
  ({ name, inputs, params }: VectorCase<LossInputs, SkyrlParams>) => {
    const cispo = lossFn === "cispo";
    const given = lossFn === "cross_entropy" ? { ...inputs, advantages: inputs.mask } : inputs;
    const options: Partial<PolicyLossOptions> = {
      lossFn,
      epsClip: cispo ? params.cispo_low : params.eps_clip_low,
      epsClipHigh: cispo ? params.cispo_high : params.eps_clip_high,
      constants: {
        tau_pos: params.tau_pos,
        tau_neg: params.tau_neg,
        clip_ratio_c: part(name, 3) === "dual_clip" ? params.clip_ratio_c : null,
      },
      aggMode: "seq-mean-token-sum",
    };
    const got = evaluateLoss(given, options, batchOf(given, summed));
    return {
      loss_sum: got.loss,
      grad_logprob: got.grad_logprob,
      metrics: { clip_ratio: got.metrics["actor/pg_clipfrac"] },
    };
  };

/** TRL's aggregations as weights. Its sequence-level losses average the slopes. */
interface TrlParams {
  loss_type: string;
  epsilon_low: number;
  epsilon_high: number;
  /** Caps the ratio of the unclipped branch, which above the upper bound equals a dual clip. */
  delta: number | null;
  beta: number;
  max_completion_length: number;
  importance_sampling_level: "token" | "sequence";
  use_bias_correction_kl?: boolean;
  off_policy_mask_threshold?: number;
}
interface TrlInputs extends LossInputs {
  importance_sampling_ratio: Matrix | null;
}

function evaluateTrl({ inputs, params }: VectorCase<TrlInputs, TrlParams>) {
  const rows = inputs.mask.length;
  const named: Record<string, PolicyLossName> = { cispo: "cispo", sapo: "sapo" };
  const lossFn = params.importance_sampling_level === "sequence" ? "gspo" : (named[params.loss_type] ?? "ppo");
  const byRow: Partial<PolicyLossOptions> = { aggMode: "seq-mean-token-mean", countEps: 0 };
  const aggregation: Record<string, Partial<PolicyLossOptions>> = {
    grpo: byRow,
    sapo: byRow,
    dr_grpo: { aggMode: "seq-mean-token-sum-norm", lossScale: params.max_completion_length },
  };
  const options: Partial<PolicyLossOptions> = {
    lossFn,
    epsClip: params.epsilon_low,
    epsClipHigh: params.epsilon_high,
    ...(params.beta === 0 ? {} : { kl: { weight: params.beta, estimator: "k3" } }),
    ...(aggregation[params.loss_type] ?? { aggMode: "token-mean" }),
    constants: {
      logRatioLimit: Number.POSITIVE_INFINITY,
      gspo_gradient: "sequence",
      clip_ratio_c: params.delta,
      // TRL's upper bound applies to the ratio itself, and there is no lower bound.
      cispo_low: 0,
      cispo_high: params.epsilon_high,
    },
  };
  const weights = inputs.importance_sampling_ratio;
  const batch = {
    ...batchOf(inputs, { sequences: rows }),
    ...(weights ? { rolloutWeights: ragged(weights, inputs.mask) } : {}),
  };
  const got = evaluateLoss(inputs, options, batch);
  // TRL reports the KL per token, regardless of the loss aggregation.
  const { metrics } = evaluateLoss(inputs, { ...options, aggMode: "token-mean" }, batch);
  return { ...got, metrics: trlMetrics(inputs, { ...got, metrics }, lossFn === "gspo") };
}

/**
 * TRL's metrics, in single precision: the shares of clipped tokens (or of rows, if ratios are per row) for positive and
 * for negative advantages, over the whole batch, and the extreme value of a single row.
 */
function trlMetrics(inputs: TrlInputs, { metrics, rows, tokens }: Evaluated, byRow: boolean): Record<string, number> {
  const counts = inputs.mask.map((row) => row.filter((flag) => flag === 1).length);
  const side = (sign: number) =>
    rows.map((row, b) => (Math.sign(inputs.advantages[b]![0]!) === sign ? (row["actor/pg_clipfrac"] ?? 0) : 0));
  const mean = (shares: number[]) =>
    shares.reduce((sum, share, b) => sum + (byRow ? share / rows.length : (share * counts[b]!) / tokens), 0);
  const [low, high] = [side(-1), side(1)];
  const single = byRow ? (value: number) => value : Math.fround;
  const used = (shares: number[]) => shares.filter((_, b) => counts[b]! > 0);
  return {
    entropy: 1,
    kl: metrics["actor/kl_loss"] ?? 0,
    "clip_ratio/low_mean": single(mean(low)),
    "clip_ratio/high_mean": single(mean(high)),
    "clip_ratio/region_mean": single(mean(low) + mean(high)),
    "clip_ratio/low_min": single(Math.min(...used(low))),
    "clip_ratio/high_max": single(Math.max(...used(high))),
    cispo_clip_ratio: single(metrics["actor/pg_clipfrac"]!),
  };
}

export const moreLossFamilies: Families = {
  "tinker/loss": tinkerLoss,
  "lightrft/loss/ppo": lightrft("ppo"),
  "lightrft/loss/cpg": lightrft("cpgd"),
  "lightrft/loss/high_entropy": lightrftHighEntropy,
  "skyrl/loss/ppo_policy_loss": skyrl("ppo"),
  "skyrl/loss/gspo_policy_loss": skyrl("gspo"),
  "skyrl/loss/compute_policy_loss_cispo": skyrlWithoutFigures("cispo"),
  "skyrl/loss/sapo_policy_loss": skyrl("sapo"),
  "skyrl/loss/importance_sampling_loss": skyrlWithoutFigures("importance_sampling"),
  "skyrl/loss/cross_entropy_loss": skyrl("cross_entropy"),
  "skyrl/loss/rollout_is_policy_loss": skipped("a loss that neither reference document names"),
  "skyrl/loss/dppo_policy_loss": skipped("a loss that neither reference document names"),
  "trl/loss": family(evaluateTrl),
  "trl/loss/loss_type=luspo-importance_sampling_level=sequence": skipped(
    "a loss that neither reference document names",
  ),
  "trl/loss/loss_type=vespo": skipped("a loss that neither reference document names"),
  "trl/loss/loss_type=grpo-beta=0.04-use_bias_correction_kl=True": skipped(
    "a TRL variant that neither reference document names",
  ),
  "trl/loss/loss_type=grpo-off_policy_mask_threshold=0.05": skipped(
    "a TRL variant that neither reference document names",
  ),
};
