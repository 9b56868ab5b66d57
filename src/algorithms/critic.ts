/** The critic's loss: squared distance to the returns, clipped around the values that the advantages came from. */

import { RunError } from "../base/errors.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { clamp } from "./loss-definition.ts";
import { type AggregationMode, matchOutputs, tokenWeight } from "./policy-loss.ts";
import type { Loss } from "./types.ts";

export interface ValueLossOptions {
  aggMode: AggregationMode;
  /** Largest distance from the old values that counts; `null` turns clipping off. */
  clip: number | null;
  /** Weight of the loss, default 1; not applied to metrics. */
  coefficient?: number;
  lossScale?: number;
  countEps?: number;
}

/**
 * `sum of w/2 max((v - R)^2, (clip(v, v_old +- c) - R)^2)`, `w` by `aggMode` and `batch.totals`.
 * Metrics (verl's names): `critic/vf_loss`, `critic/vf_clipfrac` of the whole batch, `critic/vpred_mean`.
 *
 * @throws RunError when the batch has no returns, or with clipping no old values
 */
export function valueLoss(batch: TrainingBatch, { aggMode, clip, coefficient = 1, ...scale }: ValueLossOptions): Loss {
  const { offsets, totals, returns, oldValues } = batch;
  if (returns === undefined || (clip !== null && oldValues === undefined)) {
    throw new RunError("the value loss needs the returns and the old values of the batch's tokens");
  }
  return {
    name: "value",
    outputs: { values: true },
    evaluate(outputs, sequences) {
      const values = outputs.values;
      if (values === undefined) throw new RunError("the value loss needs values, but the engine returned none");
      const gradient = { logprobs: new Float32Array(outputs.logprobs.length), values: values.slice() };
      let loss = 0;
      let clipped = 0;
      let sum = 0;
      for (const { trained, from, start } of matchOutputs(offsets, outputs.offsets, sequences)) {
        const weight = tokenWeight(aggMode, trained, totals, scale);
        values.subarray(start, start + trained).forEach((value, token) => {
          const old = clip === null ? value : oldValues![from + token]!;
          const held = clip === null ? value : clamp(value, old - clip, old + clip);
          const error = value - returns[from + token]!;
          const heldError = held - returns[from + token]!;
          const takesHeld = heldError * heldError > error * error;
          loss += (weight / 2) * (takesHeld ? heldError * heldError : error * error);
          gradient.values[start + token] = takesHeld ? 0 : coefficient * weight * error;
          clipped += Number(takesHeld);
          sum += value;
        });
      }
      const evaluated = values.length;
      if (evaluated === 0) return { loss: 0, gradient, metrics: {} };
      const share = evaluated / returns.length;
      return {
        loss: coefficient * loss,
        gradient,
        metrics: {
          "critic/vf_loss": { sum: loss, count: share },
          "critic/vf_clipfrac": { sum: clipped / totals.tokens, count: share },
          "critic/vpred_mean": { sum, count: evaluated },
        },
      };
    },
  };
}
