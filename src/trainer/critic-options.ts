/** The configuration's keys as the critic's: whether there is one, what is trained of it, and how. */
import { estimatorNamed } from "../algorithms/advantages.ts";
import type { ValueLossOptions } from "../algorithms/value-loss.ts";
import type { AdamParams, LearnerSpec } from "../backends/engine.ts";
import { adapterSpec } from "../backends/open-engine.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { adamParams } from "./algorithm-options.ts";
import { type CustomEstimators, estimatorNames } from "./credit-options.ts";

/** Whether an estimator of some role reads values. */
export function needsCritic(config: Config, custom: CustomEstimators): boolean {
  return estimatorNames(config).some((name) => estimatorNamed(name, custom).needs === "values");
}

/**
 * The policy's own adapter and a value head; a critic has no output layer to adapt.
 *
 * @throws UserError when nothing but the output layer would be adapted
 */
export function criticSpec(config: Config): LearnerSpec {
  const adapter = adapterSpec(config);
  if (adapter.kind !== "lora") return { adapter, head: "value" };
  const targets = adapter.targets.filter((target) => target !== "unembed");
  if (targets.length > 0) return { adapter: { ...adapter, targets }, head: "value" };
  throw new UserError("a critic has no output layer, and model.train_attn and model.train_mlp are both off", {
    hint: "model.train_mlp=true, or an estimator without a critic, e.g. rllm.algorithm.adv_estimator=rloo",
  });
}

export function valueLossOptions({ rllm: { algorithm, critic }, data }: Config): ValueLossOptions {
  return {
    aggMode: algorithm.loss_agg_mode ?? "token-mean",
    lossScale: algorithm.loss_scale_factor ?? data.max_response_length,
    clip: critic.value_clip,
    coefficient: critic.value_coef,
  };
}

/** The policy's schedule, betas, decay and clipping at the critic's own rate. @param step 1..total */
export function criticAdam(config: Config, step: number, total: number): AdamParams {
  return adamParams(config, step, total, config.rllm.critic.learning_rate);
}
