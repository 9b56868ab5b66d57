/** Off-policy correction: weights, rejection masks, and the difference between sampler and trainer. */

import { klPenalty, penalizeAdvantages } from "../../../src/algorithms/kl.ts";
import {
  importanceWeights,
  rejectionMask,
  rejectionRules,
  samplerMismatch,
} from "../../../src/algorithms/off-policy.ts";
import { type Families, family, skipped } from "./family.ts";
import { floats, type Matrix, ragged, raggedOffsets, spread } from "./loss-batch.ts";
import { offPolicyMetrics } from "./off-policy-metrics.ts";

interface Inputs {
  train_logprobs: Matrix;
  rollout_logprobs: Matrix;
  mask: Matrix;
}

const read = ({ train_logprobs, rollout_logprobs, mask }: Inputs) =>
  [ragged(train_logprobs, mask), ragged(rollout_logprobs, mask), raggedOffsets(mask)] as const;

/** verl computes the shares of sequences in single precision. */
export function inSingle(metrics: Record<string, number>, level?: "token" | "sequence" | null): Record<string, number> {
  const ofSequences =
    level === "sequence" ? /fraction/ : /seq_fraction_|_rs_seq_masked_fraction|_seq_(sum|mean|max)_k[123]_fraction_/;
  return Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name, ofSequences.test(name) ? Math.fround(value) : value]),
  );
}

interface WeightParams {
  rollout_is: "token" | "sequence";
  rollout_is_threshold: number;
  rollout_is_batch_normalize: boolean;
}

interface TrlParams {
  mode: `${"token" | "sequence"}_${"truncate" | "mask"}`;
  clip_max: number;
}

interface Flat {
  sampling_logprobs: number[];
  training_logprobs: number[];
  mask: number[];
}

/** rLLM's first metric is the mean absolute difference; the cookbook's is the mean signed difference. */
const mismatch = (prefix: string, signed: boolean) =>
  family<Flat, object>(({ inputs }) => {
    const trained = (values: number[]) => floats(values.filter((_, index) => inputs.mask[index] === 1));
    const sampler = trained(inputs.sampling_logprobs);
    const got = samplerMismatch(trained(inputs.training_logprobs), sampler);
    const entropy = -sampler.reduce((sum, logprob) => sum + logprob, 0) / sampler.length;
    return {
      [`${prefix}/kl_sample_train_v1`]: got[signed ? "rollout/kl_sampler_trainer_k1" : "rollout/logprob_diff_mean"],
      [`${prefix}/kl_sample_train_v2`]: got["rollout/kl_sampler_trainer_k2"],
      [`${prefix}/entropy`]: entropy,
      [`${prefix}/perplexity`]: Math.exp(entropy),
    };
  });

type Datum = Record<"sampled" | "base" | "mask" | "advantages", number[]>;

/** The cookbook also adds the penalties of later tokens to those of the prompt tokens, which are not trained. */
const tinkerPenalty = family<{ datums: Datum[] }, { kl_penalty_coef: number; kl_discount_factor: number }>(
  ({ inputs: { datums }, params }) => {
    const everywhere = datums.map(({ mask }) => mask.map(() => 1));
    const mask = datums.map((datum) => datum.mask);
    const of = (name: keyof Datum) => datums.map((datum) => datum[name]);
    const options = { weight: 1, estimator: "k1" } as const;
    const found = klPenalty(ragged(of("sampled"), mask), ragged(of("base"), mask), raggedOffsets(mask), options);
    const mean = found.penalties.reduce((sum, penalty) => sum + penalty, 0) / found.penalties.length;
    const spreadOut = spread(found.penalties, mask, mean).map((row) =>
      row.map((kl) => params.kl_penalty_coef * (kl - mean)),
    );
    const advantages = penalizeAdvantages(
      ragged(of("advantages"), everywhere),
      ragged(spreadOut, everywhere),
      raggedOffsets(everywhere),
      { gamma: params.kl_discount_factor },
    );
    return { advantages: spread(advantages, everywhere), metrics: { kl_policy_base: mean } };
  },
);

export const offPolicyFamilies: Families = {
  "verl/tis": family<Inputs, WeightParams>(({ inputs, params }) => {
    const { rollout_is: level, rollout_is_threshold: cap, rollout_is_batch_normalize: normalize } = params;
    const { weights, metrics } = importanceWeights(...read(inputs), { level, cap, normalize });
    return { weights: spread(weights, inputs.mask), metrics: inSingle(metrics, level) };
  }),
  "verl/rs": family<Inputs, { rollout_rs: string; rollout_rs_threshold: string }>(({ inputs, params }) => {
    const rules = rejectionRules(params.rollout_rs.split(","), params.rollout_rs_threshold.split(","));
    const { keep, metrics } = rejectionMask(...read(inputs), rules);
    return { mask: spread(keep, inputs.mask), metrics: inSingle(metrics) };
  }),
  "verl/offpolicy_metrics": family<Inputs, object>(({ inputs }) => offPolicyMetrics(...read(inputs))),
  "trl/tis": family<Inputs, TrlParams, { ratio: Matrix }>(({ inputs, params, outputs }) => {
    const [level, beyond] = params.mode.split("_") as ["token" | "sequence", "truncate" | "mask"];
    const { weights } = importanceWeights(...read(inputs), { level, beyond, cap: params.clip_max });
    const ratio = spread(weights, inputs.mask, 1);
    return { ratio: level === "token" ? ratio : outputs.ratio.map((_, b) => [ratio[b]![inputs.mask[b]!.indexOf(1)]!]) };
  }),
  "skyrl/tis": skipped("a chain of masks and weights in a different order; each part is compared by itself"),
  "skyrl/loss_reduction": skipped("scales advantages by micro-batch; Hone weights losses"),
  "rllm/tinker_metrics": mismatch("train", false),
  "tinker/kl_sample_train": mismatch("optim", true),
  "tinker/kl_penalty": tinkerPenalty,
};
