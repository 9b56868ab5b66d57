/** verl's metrics of the difference between two policies, computed from Hone's statistics. Runs do not report them. */

import {
  clampLog,
  countEps,
  expBounded,
  largest,
  logRatios,
  sequenceMeans,
  smallest,
  sum,
} from "../../../src/algorithms/off-policy.ts";
import { mean } from "../../../src/base/values.ts";
import { rowsOf } from "../../../src/trajectories/batch.ts";

/**
 * Perplexities of both policies, `kl` and `k3_kl` of KL(sampler || trainer), and chi-squared of the ratios by token and
 * by sequence.
 *
 * @returns an empty record if there are no tokens
 */
export function offPolicyMetrics(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
): Record<string, number> {
  if (trainer.length === 0) return {};
  const training = sequenceMeans(trainer, offsets);
  const rollout = sequenceMeans(sampler, offsets);
  const logs = logRatios(trainer, sampler);
  const held = logs.map(clampLog);
  const count = trainer.length + countEps;
  const products = rowsOf(logs, offsets).map((row) => expBounded(sum(row)) ** 2);
  const differences = rollout.map((value, sequence) => value - training[sequence]!);
  const perplexity = (means: Float64Array) => mean(means.map((value) => Math.exp(-value)));
  return {
    training_ppl: perplexity(training),
    training_log_ppl: -mean(training),
    kl: -sum(logs) / count,
    k3_kl: sum(held.map((logRatio) => Math.expm1(logRatio) - logRatio)) / count,
    rollout_ppl: perplexity(rollout),
    rollout_log_ppl: -mean(rollout),
    log_ppl_diff: mean(differences),
    log_ppl_abs_diff: mean(differences.map(Math.abs)),
    log_ppl_diff_max: largest(differences),
    log_ppl_diff_min: smallest(differences),
    ppl_ratio: mean(differences.map(Math.exp)),
    chi2_token: sum(held.map((logRatio) => Math.exp(2 * logRatio))) / count - 1,
    chi2_seq: mean(products) - 1,
  };
}
