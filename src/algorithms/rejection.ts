/** Which tokens are left out because the policy that sampled them was too far from the one that is trained. */
import { UserError } from "../errors.ts";
import { clampLog, describe, eachSequence, prefixed, sequenceMeans, smoothedMean } from "./importance-weights.ts";

export interface RejectionRule {
  /** What the figure is of: each token, or a sequence's sum, mean or largest. */
  level: "token" | "seq_sum" | "seq_mean" | "seq_max";
  /** Of KL(sampler || trainer) from one token: k1 = -d, k2 = d^2/2, k3 = e^d - 1 - d, with d = trainer - sampler. */
  estimator: "k1" | "k2" | "k3";
  /** Kept are figures within. */
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
 * @returns `[N]` 1: the token satisfies every rule; and figures of each rule
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
    const { tokens, rows } = figuresOf(trainer, sampler, offsets, rule);
    const own = Uint8Array.from(tokens, (figure) => (figure >= rule.low && figure <= rule.high ? 1 : 0));
    const { eff_sample_size: _, ...figures } = describe(tokens, rows, rows ?? sequenceMeans(tokens, offsets), {
      ...rule,
      ideal: 0,
    });
    const name = `rollout_rs_${rule.level}_${rule.estimator}_`;
    Object.assign(metrics, prefixed(name, { ...figures, ...maskedShares(own, offsets) }));
    own.forEach((kept, token) => {
      keep[token]! &= kept;
    });
  }
  return { keep, metrics: { ...metrics, ...prefixed("rollout_rs_", maskedShares(keep, offsets)) } };
}

function figuresOf(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, estimator }: RejectionRule,
) {
  const tokens = new Float64Array(trainer.length);
  for (let token = 0; token < tokens.length; token++) {
    tokens[token] = estimators[estimator](clampLog(trainer[token]! - sampler[token]!));
  }
  if (level === "token") return { tokens, rows: null };
  const rows = new Float64Array(offsets.length - 1);
  eachSequence(offsets, (sequence, from, to) => {
    const own = tokens.subarray(from, to);
    if (level === "seq_mean") rows[sequence] = smoothedMean(own);
    else if (level === "seq_sum") rows[sequence] = own.reduce((sum, value) => sum + value, 0);
    else
      rows[sequence] = own.reduce((most, value) => Math.max(most, value), from === to ? 0 : Number.NEGATIVE_INFINITY);
    tokens.fill(rows[sequence]!, from, to);
  });
  return { tokens, rows };
}

function maskedShares(keep: Uint8Array, offsets: Int32Array): Record<string, number> {
  let sequences = 0;
  eachSequence(offsets, (_, from, to) => {
    if (keep.subarray(from, to).includes(0)) sequences++;
  });
  const masked = keep.reduce((count, kept) => count + 1 - kept, 0);
  return { masked_fraction: masked / (keep.length + 1e-8), seq_masked_fraction: sequences / (offsets.length - 1) };
}

/**
 * Rules as verl names them, with a threshold each. k1's are ratios, `"low_high"` or `high` with `1 / high` below; the
 * others' are upper bounds of the figure itself.
 *
 * @throws UserError for a rule that does not exist or a threshold that is no positive number
 * @example
 * rejectionRules(["seq_mean_k2", "token_k1"], [0.05, "0.6_1.5"]);
 */
export function rejectionRules(names: readonly string[], thresholds: readonly (string | number)[]): RejectionRule[] {
  return names.map((name, index) => {
    const [, level, estimator] = /^(token|seq_sum|seq_mean|seq_max)_(k1|k2|k3)$/.exec(name) ?? [];
    if (level === undefined || (level === "seq_max" && estimator === "k1")) {
      throw new UserError(`there is no rejection rule "${name}"`, {
        hint: "token, seq_sum or seq_mean with _k1, _k2 or _k3; seq_max with _k2 or _k3",
      });
    }
    const bounds = String(thresholds[index] ?? "")
      .split("_")
      .map(Number);
    if (bounds.length > (estimator === "k1" ? 2 : 1) || bounds.some((bound) => !(bound > 0))) {
      throw new UserError(`the rejection rule ${name} has no threshold among ${JSON.stringify(thresholds)}`, {
        hint: 'a positive number for each rule; k1 also takes "low_high"',
      });
    }
    const rule = { level, estimator } as Pick<RejectionRule, "level" | "estimator">;
    const high = bounds.at(-1)!;
    if (estimator !== "k1") return { ...rule, low: Number.NEGATIVE_INFINITY, high };
    return { ...rule, low: Math.log(bounds.length === 2 ? bounds[0]! : 1 / high), high: Math.log(high) };
  });
}
