import { describe, expect, test } from "vitest";
import type { BatchTotals } from "../trajectories/types.ts";
import { type AggregationMode, tokenWeight } from "./aggregation.ts";
import { type KlEstimatorName, klEstimators } from "./kl.ts";
import type { RatioBounds } from "./losses/token-loss.ts";
import { type PolicyLossName, tokenLosses } from "./policy-loss.ts";
import { differences, readVectors, type Value } from "./vectors/read-vectors.fixture.ts";

type Matrix = number[][];
interface Inputs {
  logprobs: Matrix;
  old_logprobs: Matrix;
  advantages: Matrix;
  mask: Matrix;
  ref_logprobs?: Matrix | null;
  entropy?: Matrix;
}
interface Recipe {
  loss: PolicyLossName;
  bounds: Partial<RatioBounds>;
  /** Weight of each token of a row with so many trained tokens. */
  weight: (trained: number, totals: BatchTotals) => number;
  kl?: { estimator: KlEstimatorName; beta: number };
  entropyCoeff?: number;
}

/** The whole loss in float64, straight from the token functions. */
function evaluate(inputs: Inputs, recipe: Recipe) {
  const bounds: RatioBounds = { low: 0.8, high: 1.2, dual: null, logRatioLimit: 20, ...recipe.bounds };
  const counts = inputs.mask.map((row) => row.reduce((total, mask) => total + mask, 0));
  const tokens = counts.reduce((total, count) => total + count, 0);
  const longest = inputs.mask[0]!.length;
  const totals: BatchTotals = { tokens, sequences: counts.filter((count) => count > 0).length, longest };
  const sums = { loss: 0, policy: 0, kl: 0, entropy: 0, clipped: 0, capped: 0, opposite: 0 };
  const tokenLoss = inputs.mask.map((row) => row.map(() => 0));
  const gradient = inputs.mask.map((row, b) =>
    row.map((mask, t) => {
      if (mask === 0) return 0;
      const weight = recipe.weight(counts[b]!, totals);
      const logprob = inputs.logprobs[b]![t]!;
      const logRatio = logprob - inputs.old_logprobs[b]![t]!;
      const policy = tokenLosses[recipe.loss](logRatio, inputs.advantages[b]![t]!, bounds);
      const kl = recipe.kl
        ? klEstimators[recipe.kl.estimator](logprob - inputs.ref_logprobs![b]![t]!)
        : { value: 0, slope: 0 };
      const beta = recipe.kl?.beta ?? 0;
      const entropy = inputs.entropy?.[b]?.[t] ?? 0;
      tokenLoss[b]![t] = policy.loss;
      sums.policy += weight * policy.loss;
      sums.kl += weight * kl.value;
      sums.entropy += weight * entropy;
      sums.loss += weight * (policy.loss + beta * kl.value - (recipe.entropyCoeff ?? 0) * entropy);
      sums.clipped += Number(policy.clipped);
      sums.capped += Number(policy.capped);
      sums.opposite -= Math.min(Math.max(logRatio, -20), 20);
      return weight * (policy.slope + beta * kl.slope);
    }),
  );
  // verl divides its metrics by the token count plus this.
  const share = (sum: number) => sum / (tokens + 1e-8);
  const metrics = {
    "actor/pg_clipfrac": share(sums.clipped),
    "actor/pg_clipfrac_lower": share(sums.capped),
    "actor/ppo_kl": share(sums.opposite),
    "actor/pg_loss": sums.policy,
    "actor/entropy_loss": sums.entropy,
    kl_loss: sums.kl,
    kl_coef: recipe.kl?.beta ?? 0,
    clip_ratio: share(sums.clipped),
  };
  return { loss: sums.loss, loss_sum: sums.loss, token_loss: tokenLoss, grad_logprob: gradient, metrics };
}

const half = (name: string) => (name.includes("importance_sampling") ? "importance_sampling" : "ppo");

describe("verl", () => {
  interface Params {
    clip_ratio_low: number;
    clip_ratio_high: number;
    clip_ratio_c: number;
    loss_agg_mode: AggregationMode;
    entropy_coeff?: number;
    kl_loss_coef?: number;
    kl_loss_type?: keyof typeof klNames;
    use_kl_loss?: boolean;
    global_batch_info?: Record<
      "dp_size" | "batch_num_tokens" | "global_batch_size" | "loss_scale_factor",
      number | null
    >;
  }
  test.each(readVectors<Inputs, Params, Record<string, Value>>("losses", "verl/"))(
    "$name",
    ({ inputs, params, outputs, tol }) => {
      const info = params.global_batch_info;
      // Data-parallel ranks average their gradients, so each multiplies by their number, unless the scale is fixed.
      const ranks = params.loss_agg_mode === "seq-mean-token-sum-norm" ? 1 : (info?.dp_size ?? 1);
      const scale = info?.loss_scale_factor ? { lossScale: info.loss_scale_factor } : {};
      const got = evaluate(inputs, {
        loss: "ppo",
        bounds: { low: 1 - params.clip_ratio_low, high: 1 + params.clip_ratio_high, dual: params.clip_ratio_c },
        weight: (trained, own) => {
          const totals = {
            ...own,
            tokens: info?.batch_num_tokens ?? own.tokens,
            sequences: info?.global_batch_size ?? own.sequences,
          };
          return ranks * tokenWeight(params.loss_agg_mode, trained, totals, scale);
        },
        ...(params.use_kl_loss ? { kl: { estimator: klNames[params.kl_loss_type!], beta: params.kl_loss_coef! } } : {}),
        entropyCoeff: params.entropy_coeff ?? 0,
      });
      const { grad_entropy: _, ...wanted } = outputs;
      // verl adds the other terms to the tensor it also reports, so its pg_loss is the total.
      if (wanted.metrics && params.kl_loss_type) Object.assign(got.metrics, { "actor/pg_loss": got.loss });
      expect(differences(got, wanted, tol)).toEqual([]);
    },
  );

  type Mode = { loss_agg_mode: AggregationMode; loss_scale_factor?: number } & Partial<
    Record<"dp_size" | "batch_num_tokens" | "global_batch_size", number>
  >;
  test.each(
    readVectors<{ loss_mat: Matrix; loss_mask: Matrix }, Mode, { loss: number; grad_loss_mat: Matrix }>(
      "aggregation",
      "verl/agg_loss",
    ),
  )("$name", ({ inputs, params, outputs, tol }) => {
    const counts = inputs.loss_mask.map((row) => row.reduce((total, mask) => total + mask, 0));
    const totals = {
      tokens: params.batch_num_tokens ?? counts.reduce((total, count) => total + count, 0),
      sequences: params.global_batch_size ?? counts.filter((count) => count > 0).length,
      longest: inputs.loss_mask[0]!.length,
    };
    const ranks = params.loss_agg_mode === "seq-mean-token-sum-norm" ? 1 : (params.dp_size ?? 1);
    const scale = params.loss_scale_factor === undefined ? {} : { lossScale: params.loss_scale_factor };
    const weights = inputs.loss_mask.map((row, b) =>
      row.map((mask) => mask * ranks * tokenWeight(params.loss_agg_mode, counts[b]!, totals, scale)),
    );
    const loss = weights.reduce(
      (total, row, b) => total + row.reduce((sum, weight, t) => sum + weight * inputs.loss_mat[b]![t]!, 0),
      0,
    );
    expect(differences({ loss, grad_loss_mat: weights }, { ...outputs }, tol)).toEqual([]);
  });
});

type Thresholds = { clip_low_threshold: number; clip_high_threshold: number };
test.each(readVectors<Inputs, Thresholds, Record<string, Value>>("losses", "tinker/loss"))(
  "$name",
  ({ name, inputs, params, outputs, tol }) => {
    const bounds = { low: params.clip_low_threshold, high: params.clip_high_threshold, logRatioLimit: Infinity };
    const got = evaluate(inputs, { loss: half(name), bounds, weight: () => 1 });
    const { token_loss: tokenLoss, ...wanted } = outputs;
    expect(differences(got, wanted, tol)).toEqual([]);
    // The recorded token losses are before the mask.
    const masked = (tokenLoss as Matrix).map((row, b) => row.map((loss, t) => loss * inputs.mask[b]![t]!));
    expect(differences(got.token_loss, masked, tol)).toEqual([]);
  },
);

test.each(readVectors<Inputs, { clip_eps: number }, Record<string, Value>>("losses", "lightrft/loss/ppo"))(
  "$name",
  ({ inputs, params, outputs, tol }) => {
    const got = evaluate(inputs, {
      loss: "ppo",
      bounds: { low: 1 - params.clip_eps, high: 1 + params.clip_eps, logRatioLimit: Infinity },
      weight: (trained) => 1 / (trained * inputs.mask.length),
    });
    // LightRFT's loss is NaN when a row is empty; here such a row counts nothing.
    if (outputs.loss === "NaN") expect(got.loss).toBeTypeOf("number");
    else expect(differences(got, outputs, tol)).toEqual([]);
    expect(Number.isFinite(got.loss)).toBe(true);
  },
);

type Clip = { eps_clip_low: number; eps_clip_high: number; clip_ratio_c: number };
test.each(readVectors<Inputs, Clip, Record<string, Value>>("losses", "skyrl/loss"))(
  "$name",
  ({ name, inputs, params, outputs, tol }) => {
    const dual = name.includes("/dual_clip/") ? params.clip_ratio_c : null;
    const bounds = { low: 1 - params.eps_clip_low, high: 1 + params.eps_clip_high, dual };
    const got = evaluate(inputs, { loss: half(name), bounds, weight: () => 1 });
    const { metrics, ...wanted } = outputs;
    expect(differences(got, half(name) === "ppo" ? { ...wanted, metrics: metrics! } : wanted, tol)).toEqual([]);
  },
);

interface TrlParams {
  loss_type: "grpo" | "bnpo" | "dr_grpo" | "dapo";
  epsilon_low: number;
  epsilon_high: number;
  /** Caps the ratio of the unclipped branch: above the upper bound the same as a dual clip. */
  delta: number | null;
  beta: number;
  max_completion_length: number;
}
test.each(readVectors<Inputs, TrlParams, Record<string, Value>>("losses", "trl/loss"))(
  "$name",
  ({ inputs, params, outputs, tol }) => {
    const rows = inputs.mask.length;
    const weights: Record<TrlParams["loss_type"], Recipe["weight"]> = {
      grpo: (trained, totals) =>
        tokenWeight("seq-mean-token-mean", trained, { ...totals, sequences: rows }, { countEps: 0 }),
      bnpo: (trained, totals) => tokenWeight("token-mean", trained, totals),
      dapo: (trained, totals) => tokenWeight("token-mean", trained, totals),
      dr_grpo: (trained, totals) =>
        tokenWeight("seq-mean-token-sum-norm", trained, totals, { lossScale: rows * params.max_completion_length }),
    };
    const got = evaluate(inputs, {
      loss: "ppo",
      bounds: {
        low: 1 - params.epsilon_low,
        high: 1 + params.epsilon_high,
        dual: params.delta,
        logRatioLimit: Infinity,
      },
      weight: weights[params.loss_type],
      ...(params.beta > 0 ? { kl: { estimator: "k3", beta: params.beta } } : {}),
    });
    const { metrics: _, ...wanted } = outputs;
    expect(differences(got, wanted, tol)).toEqual([]);
  },
);

const klNames = { kl: "k1", mse: "k2", k2: "k2", low_var_kl: "k3", abs: "abs" } as const;

type KlInputs = { logprobs: Matrix; ref_logprobs: Matrix; mask?: Matrix };
type KlParams = Partial<Record<"kl_penalty" | "kl_estimator" | "kl_estimator_type", string>>;
test.each(readVectors<KlInputs, KlParams, { kl: Matrix; grad_logprob: Matrix }>("kl", ""))(
  "$name",
  ({ name, inputs, params, outputs, tol }) => {
    const wanted = params.kl_penalty ?? params.kl_estimator ?? params.kl_estimator_type ?? "";
    const estimator = (wanted in klNames ? klNames[wanted as keyof typeof klNames] : wanted) as KlEstimatorName;
    inputs.logprobs.forEach((row, b) => {
      row.forEach((logprob, t) => {
        if (inputs.mask?.[b]?.[t] === 0) return;
        const got = klEstimators[estimator](logprob - inputs.ref_logprobs[b]![t]!);
        // LightRFT leaves k3 to overflow; here it stops at 10 as in verl.
        if (name.startsWith("lightrft/kl/k3") && outputs.kl[b]![t]! > 10) {
          expect(got).toEqual({ value: 10, slope: 0 });
        } else {
          const want = { value: outputs.kl[b]![t]!, slope: outputs.grad_logprob[b]![t]! };
          expect(differences(got, want, tol)).toEqual([]);
        }
      });
    });
  },
);
