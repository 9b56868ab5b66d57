/** Supervised fine-tuning and preferences: losses of rows and of pairs. */
import {
  type LikelihoodOptions,
  likelihoodLoss,
  type PreferenceOptions,
  preferenceLoss,
} from "../../../src/algorithms/supervised.ts";
import { averageMetrics } from "../../../src/base/values.ts";
import { offsetsOf, totalsOf } from "../../../src/trajectories/batch.ts";
import type { TrainingBatch } from "../../../src/trajectories/types.ts";
import type { Matrix } from "./arrays.ts";
import { type Families, family } from "./family.ts";

interface Row {
  logprobs: number[];
  mask?: number[];
  weights?: number[];
}

/** Only trained tokens are in a batch; in the results, the others have a gradient of 0. */
function evaluateRows(
  rows: readonly Row[],
  options: LikelihoodOptions,
  Floats: typeof Float32Array | typeof Float64Array,
) {
  const weights = rows.map(({ mask, weights: own = mask ?? [] }) => own);
  const places = weights.map((own) => own.flatMap((weight, token) => (weight === 0 ? [] : [token])));
  const offsets = offsetsOf(places.map(({ length }) => length));
  const pick = (values: readonly (readonly number[])[]) =>
    places.flatMap((own, row) => own.map((token) => values[row]![token]!));
  const batch: TrainingBatch = {
    sequences: [],
    offsets,
    advantages: Float32Array.from(pick(weights)),
    samplerLogprobs: new Float32Array(0),
    groups: Int32Array.from(rows.keys()),
    roles: rows.map(() => "row"),
    totals: totalsOf(offsets),
  };
  const logprobs = Floats.from(pick(rows.map((row) => row.logprobs))) as Float32Array;
  const all = Int32Array.from(rows.keys());
  const { loss, gradient } = likelihoodLoss(batch, options).evaluate({ offsets, logprobs }, all);
  const spread = rows.map(({ logprobs: own }, row) => {
    const values = own.map(() => 0);
    for (const [index, token] of places[row]!.entries()) values[token] = gradient.logprobs[offsets[row]! + index]!;
    return values;
  });
  return { loss, gradient: spread };
}

/** The names of the recorded reductions. */
const reductionOf: Readonly<Record<string, LikelihoodOptions["reduction"]>> = {
  "token-mean": "token-mean",
  "weight-mean": "token-mean",
  "example-mean-sum": "example-mean-sum",
};

const byRows = family<{ rows: Row[] }, { reduction: string }>(({ inputs, params }) => {
  const options = { reduction: reductionOf[params.reduction]!, lossType: "nll" } as const;
  const exact = evaluateRows(inputs.rows, options, Float64Array);
  // The recorded gradients were float32.
  return { loss: exact.loss, grad_logprobs: exact.gradient.map((row) => row.map(Math.fround)) };
});

const dft = family<Row, object>(({ inputs }) => {
  const { loss, gradient } = evaluateRows([inputs], { reduction: "token-mean", lossType: "dft" }, Float64Array);
  return { loss, grad_logprobs: gradient[0] };
});

interface Pairs {
  chosen: Matrix;
  rejected: Matrix;
  reference_chosen: Matrix;
  reference_rejected: Matrix;
}

const pairs = family<Pairs, { loss_type: PreferenceOptions["lossType"]; beta: number; label_smoothing: number }>(
  ({ inputs, params }) => {
    const rows = [...inputs.chosen, ...inputs.rejected].map((row) => Array.from(row));
    const reference = [...inputs.reference_chosen, ...inputs.reference_rejected].map((row) => Array.from(row));
    const count = inputs.chosen.length;
    const offsets = offsetsOf(rows.map(({ length }) => length));
    const batch: TrainingBatch = {
      sequences: [],
      offsets,
      advantages: new Float32Array(offsets.at(-1)!).fill(1),
      samplerLogprobs: new Float32Array(0),
      referenceLogprobs: Float64Array.from(reference.flat()) as unknown as Float32Array,
      groups: Int32Array.from(rows.keys(), (row) => row % count),
      roles: rows.map((_, row) => (row < count ? "chosen" : "rejected")),
      totals: totalsOf(offsets),
    };
    const options = { lossType: params.loss_type, beta: params.beta, smoothing: params.label_smoothing };
    const logprobs = Float64Array.from(rows.flat()) as unknown as Float32Array;
    const value = preferenceLoss(batch, options).evaluate({ offsets, logprobs }, Int32Array.from(rows.keys()));
    const slices = rows.map((_, row) => Array.from(value.gradient.logprobs.subarray(offsets[row], offsets[row + 1])));
    const metrics = averageMetrics(value.metrics);
    return {
      loss: value.loss,
      grad_chosen: slices.slice(0, count),
      grad_rejected: slices.slice(count),
      accuracy: metrics["dpo/accuracy"],
      margin: metrics["dpo/margin"],
      chosen_reward: metrics["dpo/chosen_reward"],
      rejected_reward: metrics["dpo/rejected_reward"],
    };
  },
);

export const supervisedFamilies: Families = { sft: byRows, "sft/dft": dft, dpo: pairs };
