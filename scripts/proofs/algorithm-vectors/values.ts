/** The critic's loss. */

import { valueLoss } from "../../../src/algorithms/critic.ts";
import type { AggregationMode } from "../../../src/algorithms/policy-loss.ts";
import { type Families, family } from "./family.ts";
import { batchOf, type Matrix, ragged, spread } from "./loss-batch.ts";

type ValueInputs = Record<"values" | "old_values" | "returns" | "mask", Matrix>;
type ValueParams = {
  cliprange_value?: number;
  clip_eps?: number | null;
  value_clip?: number;
  loss_agg_mode?: AggregationMode;
};

/** LightRFT and SkyRL average over rows; verl uses its setting. */
const value = (rowMeans: boolean) =>
  family<ValueInputs, ValueParams, { loss: number }>(
    ({ inputs, params }) => evaluateValue(inputs, params, rowMeans),
    ({ inputs, params, outputs }) =>
      Number.isNaN(outputs.loss)
        ? {
            why: "empty rows contribute 0; upstream gives NaN",
            instead: { loss: evaluateValue(inputs, params, rowMeans).loss },
          }
        : undefined,
  );

function evaluateValue(inputs: ValueInputs, params: ValueParams, rowMeans: boolean) {
  const { mask } = inputs;
  const filler = { logprobs: inputs.values, old_logprobs: inputs.values, advantages: inputs.values, mask };
  const batch = {
    ...batchOf(filler, rowMeans ? { sequences: mask.length } : {}),
    returns: ragged(inputs.returns, mask),
    oldValues: ragged(inputs.old_values, mask),
  };
  const clip = params.cliprange_value ?? params.clip_eps ?? params.value_clip ?? null;
  const aggMode = rowMeans ? "seq-mean-token-mean" : params.loss_agg_mode!;
  const outputs = {
    offsets: batch.offsets,
    logprobs: ragged(inputs.values, mask),
    values: ragged(inputs.values, mask),
  };
  const { loss, gradient, metrics } = valueLoss(batch, { aggMode, clip, countEps: rowMeans ? 0 : 1e-8 }).evaluate(
    outputs,
    Int32Array.from(mask.keys()),
  );
  const tokens = batch.offsets.at(-1)!;
  const clipped = metrics["critic/vf_clipfrac"]!;
  const clipfrac = ((clipped.sum / clipped.count) * tokens) / (tokens + (rowMeans ? 0 : 1e-8));
  return { loss, grad_values: spread(gradient.values!, mask), clipfrac };
}

export const valueFamilies: Families = {
  "verl/value_loss": value(false),
  "lightrft/value_loss": value(true),
  "skyrl/value_loss": value(true),
};
