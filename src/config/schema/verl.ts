/**
 * Keys of verl's own tree that Hone knows by name: those shared with `rllm.*` and those listed in the documents.
 * All other keys come from verl's own tree.
 */
import { z } from "zod";
import { verlNames } from "../compose/sync/shared-keys.ts";
import { count, share, text } from "./about.ts";

const number = z.number().nullable();

/** Names of a shared key have no description here: it refers to the other name. */
const schemas: Record<string, z.ZodType> = {
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
  "data.gen_batch_size": count.describe(
    "Number of tasks drawn for a batch. Hone does not read it: the experiment's script reads the data.",
  ),
  "data.return_multi_modal_inputs": z
    .boolean()
    .describe(
      "Keep images in the data sent to workers. Hone does not read it: the experiment's script reads the data.",
    ),
  "algorithm.adv_estimator": text,
  "algorithm.norm_adv_by_std_in_grpo": z.boolean(),
  "algorithm.rollout_correction.bypass_mode": z.boolean(),
  "algorithm.rollout_correction.rollout_is": text.nullable(),
  "algorithm.rollout_correction.rollout_is_threshold": z.number(),
  "actor_rollout_ref.actor.kl_loss_coef": number,
  "actor_rollout_ref.actor.use_kl_loss": z
    .boolean()
    .describe("Add the KL to the loss; derived from rllm.algorithm.kl_beta > 0 unless set."),
  "actor_rollout_ref.actor.policy_loss.loss_mode": text.nullable(),
  "actor_rollout_ref.actor.loss_agg_mode": text.nullable(),
  "actor_rollout_ref.actor.optim.lr_warmup_steps": count,
  "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": share,
  "actor_rollout_ref.actor.optim.lr_scheduler_type": text,
  "actor_rollout_ref.actor.clip_ratio": number,
  "actor_rollout_ref.actor.clip_ratio_low": number,
  "actor_rollout_ref.actor.clip_ratio_high": number,
  "actor_rollout_ref.rollout.n": count,
  "actor_rollout_ref.rollout.val_kwargs.n": count,
  "actor_rollout_ref.rollout.temperature": z.number(),
  "actor_rollout_ref.rollout.top_p": z.number(),
  "actor_rollout_ref.rollout.top_k": count,
  "actor_rollout_ref.rollout.response_length": count,
  "actor_rollout_ref.rollout.val_kwargs.temperature": z.number(),
  "actor_rollout_ref.rollout.val_kwargs.top_p": z.number(),
  "actor_rollout_ref.rollout.val_kwargs.top_k": count,
  "critic.model.path": text.describe(
    "verl's name for rllm.critic.model, which this backend does not support: its critic starts from model.name.",
  ),
  "trainer.total_epochs": count,
  "trainer.total_training_steps": count
    .nullable()
    .describe("verl's name for rllm.trainer.total_batches; set that key instead. null corresponds to -1 there."),
  "trainer.logger": z.array(text),
  "trainer.project_name": text,
  "trainer.experiment_name": text,
  "trainer.test_freq": count,
  "trainer.save_freq": count,
  "trainer.val_before_train": z.boolean(),
  "trainer.val_only": z.boolean(),
};

/** Schemas by dotted path. Defaults are verl's, see config/verl and config/rllm/backend/verl.yaml. */
export const verlKeys: Readonly<Record<string, z.ZodType>> = Object.fromEntries(
  Object.entries(schemas).map(([key, schema]) => [
    key,
    schema.description === undefined
      ? schema.describe(`verl's name for ${verlNames.get(key)}; set that key instead.`)
      : schema,
  ]),
);

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
  "skip",
] as const;
