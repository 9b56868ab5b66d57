/** The configuration's keys as the options of the pure functions that they steer. */
import { learningRate } from "../algorithms/learning-rate.ts";
import type { AdamParams } from "../backends/engine.ts";
import type { Config } from "../config/schema.ts";

/**
 * @param step 1..total
 * @param base peak learning rate
 */
export function adamParams(
  { training, rllm: { algorithm } }: Config,
  step: number,
  total: number,
  base = training.learning_rate,
): AdamParams {
  const { lr_schedule: schedule, warmup_steps_ratio: warmupRatio } = training;
  const { warmup_steps: warmupSteps, min_lr_ratio: minRatio } = algorithm;
  const { beta1, beta2, eps, weight_decay: weightDecay, max_grad_norm: maxGradNorm } = training;
  const rate = learningRate(step, total, { schedule, warmupSteps, warmupRatio, base, minRatio });
  return { learningRate: rate, beta1, beta2, eps, weightDecay, maxGradNorm };
}
