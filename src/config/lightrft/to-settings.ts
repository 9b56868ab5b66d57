/** LightRFT's values as keys of the configuration tree. */
import { type MapNode, nodeFromObject } from "../node.ts";
import type { Origin } from "../origin.ts";
import { putNode } from "../tree.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { FlagName } from "./flags.ts";
import type { ParsedFlags } from "./parse-flags.ts";
import type { World } from "./rules.ts";

export interface LightRftSettings {
  /** What the flags say. */
  flags: MapNode;
  /** What LightRFT does where a flag is not given. */
  presets: MapNode;
  warnings: ConfigWarning[];
}

/** Losses by estimator; the others have ppo's. */
const losses: Readonly<Record<string, string>> = { gspo: "gspo", gmpo: "gmpo", cpgd: "cpgd" };

export function toSettings({ values: v, given: typed }: ParsedFlags, world: World): LightRftSettings {
  const settings: LightRftSettings = { flags: emptyLayer(), presets: emptyLayer(), warnings: [] };
  const { flags, presets, warnings } = settings;

  /** `flag` says that `key` is `value`. */
  function set(flag: FlagName, key: string, value: unknown): void {
    const text = typed.get(flag);
    if (text === undefined) always(key, value, `LightRFT's default of --${flag}`);
    else put(flags, key, value, { kind: "override", text });
  }
  /** What LightRFT always does. */
  function always(key: string, value: unknown, why: string): void {
    put(presets, key, value, { kind: "preset", text: why });
  }
  /** As `set`, where the flag was given; else the key keeps Hone's own default. */
  function setGiven(flag: FlagName, key: string, value: unknown): void {
    if (typed.has(flag)) set(flag, key, value);
  }
  function changesNothing(flag: FlagName, why: string): void {
    const text = typed.get(flag);
    if (text !== undefined) warnings.push({ category: "unsupported", paths: [`--${flag}`], text: `${text}: ${why}` });
  }

  always("rllm.backend", "local", "LightRFT trains on its own machines");
  set("pretrain", "model.name", v.pretrain);
  set("lora_rank", "model.lora_rank", v.lora_rank);
  set("lora_alpha", "model.lora_alpha", v.lora_alpha);
  setGiven("reward_pretrain", "rllm.reward.model", v.reward_pretrain);
  setGiven("remote_rm_url", "rllm.reward.remote_url", v.remote_rm_url?.split(",").map((url) => url.trim()) ?? []);
  set("max_len", "training.max_length", v.max_len);
  set("prompt_max_len", "rllm.data.max_prompt_length", v.prompt_max_len);
  if (v.generate_max_len === null) {
    always("rllm.data.max_response_length", v.max_len, "--max_len bounds prompt and response together");
  } else set("generate_max_len", "rllm.data.max_response_length", v.generate_max_len);

  set("num_episodes", "rllm.trainer.total_epochs", v.num_episodes);
  set("max_epochs", "training.ppo_epochs", v.max_epochs);
  set("actor_learning_rate", "training.learning_rate", v.actor_learning_rate);
  set("critic_learning_rate", "rllm.critic.learning_rate", v.critic_learning_rate);
  set("lr_warmup_ratio", "rllm.algorithm.warmup_steps_ratio", v.lr_warmup_ratio);
  always("rllm.algorithm.lr_schedule", "cosine", "LightRFT's schedule");
  always("rllm.algorithm.min_lr_ratio", 0.1, "LightRFT's schedule");
  set("max_norm", "training.max_grad_norm", v.max_norm);
  set("l2", "training.weight_decay", v.l2);
  set("adam_betas", "training.beta1", v.adam_betas[0]);
  set("adam_betas", "training.beta2", v.adam_betas[1]);
  set("seed", "rllm.trainer.seed", v.seed);

  set("rollout_batch_size", "rllm.data.train_batch_size", v.rollout_batch_size);
  set("n_samples_per_prompt", "rllm.rollout.n", v.n_samples_per_prompt);
  const steps = Math.max(1, Math.ceil((v.rollout_batch_size * v.n_samples_per_prompt) / v.train_batch_size));
  set("train_batch_size", "training.num_minibatches", steps);
  setGiven("micro_train_batch_size", "local.micro_batch_tokens", v.micro_train_batch_size * v.max_len);
  changesNothing(
    "micro_rollout_batch_size",
    "changes nothing: samples are generated in one continuous batch (local.max_sample_rows) and their log-probabilities computed by local.micro_batch_tokens",
  );

  const estimator = v.advantage_estimator;
  set(
    "advantage_estimator",
    "rllm.algorithm.adv_estimator",
    estimator in losses && estimator !== "cpgd" ? "group_norm" : estimator,
  );
  set("advantage_estimator", "rllm.algorithm.loss_fn", losses[estimator] ?? "ppo");
  always("rllm.algorithm.estimator_preset", "lightrft", "LightRFT's constants");
  always("rllm.algorithm.loss_agg_mode", "seq-mean-token-mean", "LightRFT's losses are means of sequences' means");
  set("clip_range", "rllm.algorithm.eps_clip", v.clip_range);
  set("clip_range_higher", "rllm.algorithm.eps_clip_high", v.clip_range_higher);
  set("kl_estimator", "rllm.algorithm.kl_estimator", v.kl_estimator);
  set("init_kl_coef", "rllm.algorithm.kl_beta", v.init_kl_coef);
  set("use_kl_loss", "rllm.algorithm.use_kl_in_reward", !v.use_kl_loss && v.init_kl_coef > 0);
  if (typed.has("kl_target") || estimator === "cpgd") {
    set("kl_target", "rllm.algorithm.kl_target", v.kl_target === 0 ? null : v.kl_target);
  }
  set("high_entropy_token_ratio", "rllm.algorithm.high_entropy_token_ratio", v.high_entropy_token_ratio);
  set("temperature", "rllm.rollout.train.temperature", v.temperature);
  set("top_p", "rllm.rollout.train.top_p", v.top_p);

  set("reward_running_norm", "rllm.reward.running_norm", v.reward_running_norm);
  set("reward_running_norm_minus_mean", "rllm.reward.running_norm_minus_mean", v.reward_running_norm_minus_mean);
  set("reward_clip", "rllm.reward.clip", v.reward_clip);
  set("advantages_norm", "rllm.algorithm.advantages_norm", v.advantages_norm);
  set("advantage_clip", "rllm.algorithm.advantage_clip", v.advantage_clip);
  set("dynamic_sampling", "rllm.dynamic_sampling.enable", v.dynamic_sampling);
  set("overlong_buffer", "rllm.reward.overlong.enable", v.overlong_buffer);
  set("overlong_buffer_len", "rllm.reward.overlong.buffer_len", v.overlong_buffer_len);
  set("overlong_buffer_penalty_factor", "rllm.reward.overlong.penalty_factor", v.overlong_buffer_penalty_factor);
  set("rm_use_engine", "rllm.reward.use_engine", v.rm_use_engine);

  if (world.source === undefined) always("local.processes", world.processes, "the fewest that the flags allow");
  else if (world.source === "WORLD_SIZE") {
    put(flags, "local.processes", world.processes, { kind: "override", text: `WORLD_SIZE=${world.processes}` });
  }
  set(v.fsdp ? "fsdp" : "zero_stage", "local.sharding", v.fsdp ? "fsdp" : `zero${v.zero_stage}`);
  if (v.fsdp) changesNothing("zero_stage", "changes nothing: --fsdp takes its place");
  set(
    v.adam_offload ? "adam_offload" : "fsdp_cpu_offload",
    "local.offload_optimizer",
    v.adam_offload || v.fsdp_cpu_offload,
  );
  set("use_mp_opt", "local.mixed_precision_optimizer", v.use_mp_opt);
  if (v.bf16) set("bf16", "local.dtype", "bfloat16");
  set("gradient_checkpointing", "local.gradient_checkpointing", v.gradient_checkpointing);
  set("sp_size", "local.sequence_parallel", v.sp_size);
  set("engine_type", "local.sampler.type", v.engine_type);
  set("engine_tp_size", "local.sampler.tensor_parallel", v.engine_tp_size);
  set("engine_mem_util", "local.sampler.memory_share", v.engine_mem_util);
  set("enable_engine_sleep", "local.sampler.sleep", v.enable_engine_sleep);
  changesNothing("packing_samples", "changes nothing: Hone always packs");
  changesNothing(
    "fused_linear_logprob",
    "changes nothing: Hone never holds all logits; local.chunk_size says how many",
  );
  setGiven("chunk_size", "local.chunk_size", v.chunk_size);

  if (v.log_dir !== null) {
    set("log_dir", "rllm.episode_logging.log_episodes", true);
    set("log_dir", "rllm.episode_logging.episode_log_dir", v.log_dir);
  }
  set("plot_every", "rllm.trainer.plot_every", v.plot_every);
  const loggers = [
    "console",
    ...(v.use_tensorboard === null ? [] : ["tensorboard"]),
    ...(v.use_wandb === null ? [] : ["wandb"]),
  ];
  set(v.use_tensorboard === null ? "use_wandb" : "use_tensorboard", "rllm.trainer.logger", loggers);
  setGiven("use_tensorboard", "rllm.trainer.tensorboard_dir", v.use_tensorboard);
  setGiven("use_wandb", "rllm.trainer.project_name", v.use_wandb);
  setGiven("wandb_org", "rllm.trainer.wandb_entity", v.wandb_org);
  setGiven("wandb_run_name", "rllm.trainer.experiment_name", v.wandb_run_name);

  setGiven("save_path", "rllm.trainer.run_dir", v.save_path);
  if (v.save_path === null) {
    const text = "--save_path is not given: the run's folder will be a new one under runs/";
    warnings.push({ category: "coerced", paths: ["--save_path", "rllm.trainer.run_dir"], text });
  }
  const resume = v.load_checkpoint ? (v.ckpt_path === null ? "auto" : "path") : "off";
  set("load_checkpoint", "training.resume_mode", resume);
  if (v.load_checkpoint) setGiven("ckpt_path", "training.resume_from_path", v.ckpt_path);
  else changesNothing("ckpt_path", "changes nothing without --load_checkpoint");
  if (v.save_steps === null) {
    set("save_interval", "rllm.trainer.save_freq", v.save_interval);
    always("rllm.trainer.freq_unit", "epochs", "--save_interval counts episodes");
  } else set("save_steps", "rllm.trainer.save_freq", v.save_steps);
  set("max_ckpt_num", "training.max_ckpt_num", v.max_ckpt_num);
  set("max_ckpt_mem", "training.max_ckpt_mem", v.max_ckpt_mem);
  set("mixed_mm_data", "data.mixed_mm_data", v.mixed_mm_data);
  setGiven("processor", "model.processor", v.processor);
  return settings;
}

function emptyLayer(): MapNode {
  return { kind: "map", origin: { kind: "preset", text: "LightRFT" }, entries: [] };
}

function put(layer: MapNode, key: string, value: unknown, origin: Origin): void {
  putNode(layer, key, nodeFromObject(value, origin));
}
