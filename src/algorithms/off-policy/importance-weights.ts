/** Importance weights that correct for the distance between sampler and trainer. Names and constants are verl's. */
import { rowsOf } from "../../trajectories/batch.ts";
import { countEps, describe, expBounded, logRatios, prefixed, sequenceMeans, smoothedMean, sum } from "./describe.ts";

export interface ImportanceOptions {
  /** `sequence` gives each token the product of its sequence's ratios. */
  level: "token" | "sequence";
  /** Larger weights are truncated to this. */
  cap: number;
  /** `mask`: weights above the cap become 0 instead. */
  beyond?: "truncate" | "mask";
  /** Divide by the mean weight, of tokens or of sequences. */
  normalize?: boolean;
}

/**
 * Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): `exp(trainer - sampler)` of each token, at
 * most `cap`. Metrics describe the weights before truncation: `mean`, `max`, `min`, the shares above `cap` and below
 * `1 / cap`, `eff_sample_size`, and `seq_*` of the sequences' mean weights.
 *
 * @param trainer `[N]` log-probabilities, detached
 * @param sampler `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` weights; metrics are empty if there are no tokens
 */
export function importanceWeights(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, cap, beyond = "truncate", normalize = false }: ImportanceOptions,
): { weights: Float32Array; metrics: Record<string, number> } {
  if (trainer.length === 0) return { weights: trainer.slice(), metrics: {} };
  const logs = logRatios(trainer, sampler);
  let products: Float64Array | null = null;
  if (level === "sequence") {
    const rows = rowsOf(logs, offsets);
    products = Float64Array.from(rows.map(sum), expBounded);
    for (const row of rows) row.fill(sum(row));
  }
  const ratios = logs.map(expBounded);
  const described = describe(ratios, products, sequenceMeans(ratios, offsets), { low: 1 / cap, high: cap, ideal: 1 });
  const metrics = prefixed("rollout_is_", described, {
    fraction_high: "ratio_fraction_high",
    fraction_low: "ratio_fraction_low",
  });
  let weights = trainer.slice();
  weights.set(ratios.map((ratio) => (ratio <= cap ? ratio : beyond === "mask" ? 0 : cap)));
  if (normalize) {
    const factor = level === "token" ? smoothedMean(weights) : meanOfSequences(weights, offsets);
    const divisor = factor > countEps ? factor : 1;
    metrics.rollout_is_batch_norm_factor = divisor;
    weights = weights.map((weight) => weight / divisor);
  }
  return { weights, metrics };
}

function meanOfSequences(weights: Float32Array, offsets: Int32Array): number {
  const rows = rowsOf(weights, offsets).filter((row) => row.length > 0);
  return rows.reduce((total, row) => total + smoothedMean(row), 0) / rows.length;
}
