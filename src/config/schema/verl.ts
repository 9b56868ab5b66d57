/**
 * Keys of verl's own tree that Hone knows by name: those shared with `rllm.*` and those listed in the documents.
 * All other keys come from verl's own tree.
 */
import { z } from "zod";
import { count, share, text } from "./about.ts";

const same = (rllm: string) => `verl's name for ${rllm}; set that key instead.`;
const number = z.number().nullable();

/** Schemas by dotted path. Defaults are verl's, see config/verl and config/rllm/backend/verl.yaml. */
export const verlKeys: Readonly<Record<string, z.ZodType>> = {
  "actor_rollout_ref.rollout.mode": text.describe("Rollout mode; the trainer requires async."),
  "actor_rollout_ref.rollout.agent.num_workers": count
    .min(0)
    .describe("Number of verl's own agent workers; 0, because Hone runs the agents."),
  "actor_rollout_ref.rollout.calculate_log_probs": z
    .boolean()
    .describe("Return the sampler's log-probabilities, which rollout correction needs."),
  "actor_rollout_ref.rollout.do_sample": z.boolean().describe("false sets the temperature to 0 in training."),
  "actor_rollout_ref.rollout.val_kwargs.do_sample": z
    .boolean()
    .describe("false sets the temperature to 0 in validation."),
  "actor_rollout_ref.actor.use_rollout_log_probs": z
    .boolean()
    .describe("Make the actor use the sampler's log-probabilities if bypass_mode is on."),
  "data.gen_batch_size": count.describe("Number of tasks drawn for a batch."),
  "data.return_multi_modal_inputs": z.boolean().describe("Keep images in the data sent to workers."),
  "algorithm.adv_estimator": text.describe(same("rllm.algorithm.adv_estimator")),
  "algorithm.norm_adv_by_std_in_grpo": z.boolean().describe(same("rllm.algorithm.norm_adv_by_std_in_grpo")),
  "algorithm.rollout_correction.bypass_mode": z
    .boolean()
    .describe(same("rllm.algorithm.rollout_correction.bypass_mode")),
  "algorithm.rollout_correction.rollout_is": text
    .nullable()
    .describe(same("rllm.algorithm.rollout_correction.tis_mode")),
  "algorithm.rollout_correction.rollout_is_threshold": z
    .number()
    .describe(same("rllm.algorithm.rollout_correction.tis_cap")),
  "actor_rollout_ref.actor.kl_loss_coef": number.describe(same("rllm.algorithm.kl_beta")),
  "actor_rollout_ref.actor.use_kl_loss": z
    .boolean()
    .describe("Add the KL to the loss; derived from rllm.algorithm.kl_beta > 0 unless set."),
  "actor_rollout_ref.actor.policy_loss.loss_mode": text.nullable().describe(same("rllm.algorithm.loss_fn")),
  "actor_rollout_ref.actor.loss_agg_mode": text.nullable().describe(same("rllm.algorithm.loss_agg_mode")),
  "actor_rollout_ref.actor.optim.lr_warmup_steps": count.describe(same("rllm.algorithm.warmup_steps")),
  "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": share.describe(same("rllm.algorithm.warmup_steps_ratio")),
  "actor_rollout_ref.actor.optim.lr_scheduler_type": text.describe(same("rllm.algorithm.lr_schedule")),
  "actor_rollout_ref.actor.clip_ratio": number.describe(same("rllm.algorithm.eps_clip")),
  "actor_rollout_ref.actor.clip_ratio_low": number.describe(same("rllm.algorithm.eps_clip")),
  "actor_rollout_ref.actor.clip_ratio_high": number.describe(same("rllm.algorithm.eps_clip_high")),
  "actor_rollout_ref.actor.router_replay.mode": text.describe(same("rllm.algorithm.router_replay")),
  "actor_rollout_ref.rollout.n": count.describe(same("rllm.rollout.n")),
  "actor_rollout_ref.rollout.val_kwargs.n": count.describe(same("rllm.rollout.n_val")),
  "actor_rollout_ref.rollout.temperature": z.number().describe(same("rllm.rollout.train.temperature")),
  "actor_rollout_ref.rollout.top_p": z.number().describe(same("rllm.rollout.train.top_p")),
  "actor_rollout_ref.rollout.top_k": count.describe(same("rllm.rollout.train.top_k")),
  "actor_rollout_ref.rollout.response_length": count.describe(same("rllm.rollout.train.max_tokens")),
  "actor_rollout_ref.rollout.val_kwargs.temperature": z.number().describe(same("rllm.rollout.val.temperature")),
  "actor_rollout_ref.rollout.val_kwargs.top_p": z.number().describe(same("rllm.rollout.val.top_p")),
  "actor_rollout_ref.rollout.val_kwargs.top_k": count.describe(same("rllm.rollout.val.top_k")),
  "trainer.total_epochs": count.describe(same("rllm.trainer.total_epochs")),
  "trainer.total_training_steps": count
    .nullable()
    .describe(`${same("rllm.trainer.total_batches")} null corresponds to -1 there.`),
  "trainer.logger": z.array(text).describe(same("rllm.trainer.logger")),
  "trainer.project_name": text.describe(same("rllm.trainer.project_name")),
  "trainer.experiment_name": text.describe(same("rllm.trainer.experiment_name")),
  "trainer.test_freq": count.describe(same("rllm.trainer.test_freq")),
  "trainer.save_freq": count.describe(same("rllm.trainer.save_freq")),
  "trainer.val_before_train": z.boolean().describe(same("rllm.trainer.val_before_train")),
  "trainer.val_only": z.boolean().describe(same("rllm.trainer.val_only")),
};

/** Sections at the root that are verl's own. */
export const verlSections = [
  "actor_rollout_ref",
  "algorithm",
  "trainer",
  "critic",
  "reward",
  "reward_model",
  "reward_manager",
  "custom_reward_function",
  "sandbox_fusion",
  "distillation",
  "global_profiler",
  "transfer_queue",
  "ray_kwargs",
  "rollout",
  "async_training",
  "model_engine",
] as const;
