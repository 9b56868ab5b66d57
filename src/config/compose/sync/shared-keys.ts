/** Keys with two names: the backend's own name, and the `rllm.*` name, which scripts for every backend use. */

/** `[the backend's own, rllm.*]` */
export type SharedKey = readonly [native: string, rllm: string];

/** Sizes come first, because other defaults refer to them. */
const sizes = (...names: string[]): SharedKey[] => names.map((name) => [`data.${name}`, `rllm.data.${name}`]);

const sampling: SharedKey[] = ["train", "val"].flatMap((when) =>
  ["temperature", "top_p", "top_k", "min_p"].map(
    (name): SharedKey => [`sampling.${when}.${name}`, `rllm.rollout.${when}.${name}`],
  ),
);

/** The shared keys of the local and Tinker backends. */
export const sharedKeys: readonly SharedKey[] = [
  ...sizes("train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length"),
  ...sampling,
  ["training.lr_schedule", "rllm.algorithm.lr_schedule"],
  ["training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
  ["rollout_engine.disable_thinking", "rllm.disable_thinking"],
  ["rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning"],
];

/** Forwarded in one direction: the first key sets the second, unless the second is set too. */
export const forwardedKeys: readonly SharedKey[] = [
  ["training.group_size", "rllm.rollout.n"],
  ["validation.group_size", "rllm.rollout.n_val"],
];

const correction = (verl: string, rllm: string): SharedKey => [
  `algorithm.rollout_correction.${verl}`,
  `rllm.algorithm.rollout_correction.${rllm}`,
];
const algorithm = (name: string): SharedKey => [`algorithm.${name}`, `rllm.algorithm.${name}`];
const actor = (verl: string, rllm: string): SharedKey => [`actor_rollout_ref.actor.${verl}`, `rllm.algorithm.${rllm}`];
const rollout = (verl: string, rllm: string): SharedKey => [
  `actor_rollout_ref.rollout.${verl}`,
  `rllm.rollout.${rllm}`,
];
const trainer = (...names: string[]): SharedKey[] => names.map((name) => [`trainer.${name}`, `rllm.trainer.${name}`]);

/** The shared keys of verl: the document's table, plus rows found only in rLLM's code, and the critic's model. */
export const verlSharedKeys: readonly SharedKey[] = [
  ...sizes("train_batch_size", "max_prompt_length", "max_response_length"),
  algorithm("adv_estimator"),
  algorithm("norm_adv_by_std_in_grpo"),
  correction("bypass_mode", "bypass_mode"),
  correction("rollout_is", "tis_mode"),
  correction("rollout_is_threshold", "tis_cap"),
  actor("kl_loss_coef", "kl_beta"),
  actor("policy_loss.loss_mode", "loss_fn"),
  actor("loss_agg_mode", "loss_agg_mode"),
  actor("optim.lr_warmup_steps", "warmup_steps"),
  actor("optim.lr_warmup_steps_ratio", "warmup_steps_ratio"),
  actor("clip_ratio_high", "eps_clip_high"),
  rollout("n", "n"),
  rollout("val_kwargs.n", "n_val"),
  rollout("temperature", "train.temperature"),
  rollout("top_p", "train.top_p"),
  rollout("top_k", "train.top_k"),
  rollout("response_length", "train.max_tokens"),
  rollout("val_kwargs.temperature", "val.temperature"),
  rollout("val_kwargs.top_p", "val.top_p"),
  rollout("val_kwargs.top_k", "val.top_k"),
  ["critic.model.path", "rllm.critic.model"],
  ...trainer("save_freq", "test_freq", "val_before_train", "val_only"),
  ...trainer("total_epochs", "logger", "project_name", "experiment_name"),
];

const policyLoss = (name: string): SharedKey => actor(`policy_loss.${name}`, `policy_loss.${name}`);

/** verl's names for settings of the model, the optimizer and the losses. Both names are current. */
export const verlOwnKeys: readonly SharedKey[] = [
  ["actor_rollout_ref.model.path", "model.name"],
  ["actor_rollout_ref.model.lora_rank", "model.lora_rank"],
  ["actor_rollout_ref.model.lora_alpha", "model.lora_alpha"],
  ["actor_rollout_ref.actor.optim.lr", "training.learning_rate"],
  ["actor_rollout_ref.actor.optim.weight_decay", "training.weight_decay"],
  ["actor_rollout_ref.actor.optim.clip_grad", "training.max_grad_norm"],
  ["actor_rollout_ref.actor.ppo_epochs", "training.ppo_epochs"],
  actor("entropy_coeff", "entropy_coeff"),
  actor("clip_ratio_c", "clip_ratio_c"),
  actor("loss_scale_factor", "loss_scale_factor"),
  actor("tau_pos", "policy_loss.tau_pos"),
  actor("tau_neg", "policy_loss.tau_neg"),
  ...["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef"].map(policyLoss),
  algorithm("lam"),
  ["critic.optim.lr", "rllm.critic.learning_rate"],
  ["trainer.resume_mode", "training.resume_mode"],
  ["trainer.resume_from_path", "training.resume_from_path"],
];

/** verl's names and the keys to set instead: the shared keys, and those that need a rule of their own. */
export const verlNames: ReadonlyMap<string, string> = new Map([
  ...verlSharedKeys,
  ["trainer.total_training_steps", "rllm.trainer.total_batches"],
  actor("use_kl_loss", "kl_beta"),
  actor("clip_ratio", "eps_clip"),
  actor("clip_ratio_low", "eps_clip"),
  ...["lr_scheduler_type", "lr_decay_style", "decay_type"].map((name) => actor(`optim.${name}`, "lr_schedule")),
]);
