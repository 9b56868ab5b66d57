/** The configuration's keys as the options of the pure functions that they steer. */
import type { estimateAdvantages } from "../algorithms/advantages.ts";
import { estimatorPresets } from "../algorithms/estimators/estimator.ts";
import { learningRate } from "../algorithms/learning-rate.ts";
import type { PolicyLossOptions } from "../algorithms/policy-loss.ts";
import type { AdamParams } from "../backends/engine.ts";
import type { Config } from "../config/schema.ts";

export function estimatorOptions({ rllm: { algorithm } }: Config): Parameters<typeof estimateAdvantages>[1] {
  const { adv_estimator: estimator, norm_adv_by_std_in_grpo: std } = algorithm;
  return { ...estimatorPresets.rllm, estimator, std };
}

export function policyLossOptions({ rllm: { algorithm }, data }: Config): PolicyLossOptions {
  return {
    lossFn: algorithm.loss_fn ?? "ppo",
    epsClip: algorithm.eps_clip,
    epsClipHigh: algorithm.eps_clip_high,
    aggMode: algorithm.loss_agg_mode,
    lossScale: data.max_response_length,
    klBeta: algorithm.kl_beta,
    klEstimator: algorithm.kl_estimator,
  };
}

/** @param step 1..total */
export function adamParams({ training }: Config, step: number, total: number): AdamParams {
  const { lr_schedule: schedule, warmup_steps_ratio: warmupRatio, learning_rate: base } = training;
  const { beta1, beta2, eps, weight_decay: weightDecay, max_grad_norm: maxGradNorm } = training;
  const rate = learningRate(step, total, { schedule, warmupRatio, base });
  return { learningRate: rate, beta1, beta2, eps, weightDecay, maxGradNorm };
}
