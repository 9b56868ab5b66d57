/** Rejects tokens for which the sampler's policy is too far from the trained policy. */
import { UserError } from "../../errors.ts";
import { rowsOf } from "../../trajectories/batch.ts";
import {
  clampLog,
  countEps,
  describe,
  largest,
  logRatios,
  prefixed,
  sequenceMeans,
  smoothedMean,
  sum,
} from "./describe.ts";

export interface RejectionRule {
  /** What is compared with the bounds: each token's value, or the sum, mean or largest value of a sequence. */
  level: "token" | "seq_sum" | "seq_mean" | "seq_max";
  /** Value of a token, an estimate of KL(sampler || trainer): k1 = -d, k2 = d^2/2, k3 = e^d - 1 - d, d = trainer - sampler. */
  estimator: "k1" | "k2" | "k3";
  /** Values from `low` to `high` are kept. */
  low: number;
  high: number;
}

const estimators = {
  k1: (logRatio: number) => -logRatio,
  k2: (logRatio: number) => logRatio ** 2 / 2,
  k3: (logRatio: number) => Math.expm1(logRatio) - logRatio,
};

/**
 * @param trainer `[N]` log-probabilities, detached
 * @param sampler `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` 1: the token satisfies every rule; and metrics of each rule
 */
export function rejectionMask(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  rules: readonly RejectionRule[],
): { keep: Uint8Array; metrics: Record<string, number> } {
  const keep = new Uint8Array(trainer.length).fill(1);
  const metrics: Record<string, number> = {};
  if (trainer.length === 0) return { keep, metrics };
  for (const rule of rules) {
    const { tokens, sequences } = valuesOf(trainer, sampler, offsets, rule);
    const own = new Uint8Array(tokens.length);
    for (const [token, value] of tokens.entries()) {
      if (value >= rule.low && value <= rule.high) own[token] = 1;
      else keep[token] = 0;
    }
    const means = sequences ?? sequenceMeans(tokens, offsets);
    const { eff_sample_size: _, ...described } = describe(tokens, sequences, means, { ...rule, ideal: 0 });
    const name = `rollout_rs_${rule.level}_${rule.estimator}_`;
    Object.assign(metrics, prefixed(name, { ...described, ...maskedShares(own, offsets) }));
  }
  return { keep, metrics: { ...metrics, ...prefixed("rollout_rs_", maskedShares(keep, offsets)) } };
}

/** The value that the rule compares with its bounds, of each token and, unless the level is `token`, of each sequence. */
function valuesOf(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, estimator }: RejectionRule,
): { tokens: Float64Array; sequences: Float64Array | null } {
  const tokens = logRatios(trainer, sampler).map((logRatio) => estimators[estimator](clampLog(logRatio)));
  if (level === "token") return { tokens, sequences: null };
  const sequences = rowsOf(tokens, offsets).map((row) => {
    const value = ofSequence[level](row);
    row.fill(value);
    return value;
  });
  return { tokens, sequences: Float64Array.from(sequences) };
}

const ofSequence = {
  seq_sum: sum,
  seq_mean: smoothedMean,
  seq_max: (row: Float64Array) => (row.length === 0 ? 0 : largest(row)),
};

function maskedShares(keep: Uint8Array, offsets: Int32Array): Record<string, number> {
  const rows = rowsOf(keep, offsets);
  const masked = keep.reduce((count, kept) => count + 1 - kept, 0);
  return {
    masked_fraction: masked / (keep.length + countEps),
    seq_masked_fraction: rows.filter((row) => row.includes(0)).length / rows.length,
  };
}

/** The bounds of a rule's value; undefined if the threshold is not valid for it. */
export function rejectionBounds(
  name: string,
  threshold: string | number | undefined,
): Pick<RejectionRule, "low" | "high"> | undefined {
  const isRatio = name.endsWith("_k1");
  const bounds = String(threshold ?? "")
    .split("_")
    .map(Number);
  if (bounds.length > (isRatio ? 2 : 1) || bounds.some((bound) => !(bound > 0))) return undefined;
  const [first = Number.NaN, second] = bounds;
  if (!isRatio) return { low: Number.NEGATIVE_INFINITY, high: first };
  return { low: Math.log(second === undefined ? 1 / first : first), high: Math.log(second ?? first) };
}

/**
 * Rules by verl's names, each with a threshold. The thresholds of k1 are ratios: `"low_high"`, or `high`, whose lower bound
 * is `1 / high`. The others are upper bounds of the value.
 *
 * @throws UserError for an unknown rule or a threshold that is not a positive number
 * @example
 * rejectionRules(["seq_mean_k2", "token_k1"], [0.05, "0.6_1.5"]);
 */
export function rejectionRules(names: readonly string[], thresholds: readonly (string | number)[]): RejectionRule[] {
  return names.map((name, index) => {
    const [, level, estimator] = /^(token|seq_sum|seq_mean|seq_max)_(k1|k2|k3)$/.exec(name) ?? [];
    if (level === undefined || (level === "seq_max" && estimator === "k1")) {
      throw new UserError(`the rejection rule "${name}" does not exist`, {
        hint: "token, seq_sum or seq_mean with _k1, _k2 or _k3; seq_max with _k2 or _k3",
      });
    }
    const bounds = rejectionBounds(name, thresholds[index]);
    if (bounds === undefined) {
      throw new UserError(`the rejection rule ${name} has no valid threshold in ${JSON.stringify(thresholds)}`, {
        hint: 'a positive number for each rule; k1 also takes "low_high"',
      });
    }
    return { level, estimator, ...bounds } as RejectionRule;
  });
}
