/** Converts LightRFT's flags to keys of the configuration tree. */

import { own } from "../../own.ts";
import { type MapNode, nodeFromObject } from "../node.ts";
import type { Origin } from "../origin.ts";
import { putNode } from "../tree.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { FlagName } from "./flags.ts";
import type { ParsedFlags } from "./parse-flags.ts";
import type { World } from "./rules.ts";

export interface LightRftSettings {
  /** Keys set by given flags. */
  flags: MapNode;
  /** LightRFT's defaults for all other flags. */
  presets: MapNode;
  warnings: ConfigWarning[];
}

type Values = ParsedFlags["values"];

/** Flags whose value (given, or LightRFT's default) is copied to the key. */
const sameValue = {
  pretrain: "model.name",
  lora_rank: "model.lora_rank",
  lora_alpha: "model.lora_alpha",
  max_len: "training.max_length",
  prompt_max_len: "rllm.data.max_prompt_length",
  num_episodes: "rllm.trainer.total_epochs",
  max_epochs: "training.ppo_epochs",
  actor_learning_rate: "training.learning_rate",
  critic_learning_rate: "rllm.critic.learning_rate",
  lr_warmup_ratio: "rllm.algorithm.warmup_steps_ratio",
  max_norm: "training.max_grad_norm",
  l2: "training.weight_decay",
  seed: "rllm.trainer.seed",
  rollout_batch_size: "rllm.data.train_batch_size",
  n_samples_per_prompt: "rllm.rollout.n",
  clip_range: "rllm.algorithm.eps_clip",
  clip_range_higher: "rllm.algorithm.eps_clip_high",
  kl_estimator: "rllm.algorithm.kl_estimator",
  init_kl_coef: "rllm.algorithm.kl_beta",
  high_entropy_token_ratio: "rllm.algorithm.high_entropy_token_ratio",
  temperature: "rllm.rollout.train.temperature",
  top_p: "rllm.rollout.train.top_p",
  reward_running_norm: "rllm.reward.running_norm",
  reward_running_norm_minus_mean: "rllm.reward.running_norm_minus_mean",
  reward_clip: "rllm.reward.clip",
  advantages_norm: "rllm.algorithm.advantages_norm",
  advantage_clip: "rllm.algorithm.advantage_clip",
  dynamic_sampling: "rllm.dynamic_sampling.enable",
  overlong_buffer: "rllm.reward.overlong.enable",
  overlong_buffer_len: "rllm.reward.overlong.buffer_len",
  overlong_buffer_penalty_factor: "rllm.reward.overlong.penalty_factor",
  rm_use_engine: "rllm.reward.use_engine",
  use_mp_opt: "local.mixed_precision_optimizer",
  gradient_checkpointing: "local.gradient_checkpointing",
  sp_size: "local.sequence_parallel",
  engine_type: "local.sampler.type",
  engine_tp_size: "local.sampler.tensor_parallel",
  engine_mem_util: "local.sampler.memory_share",
  enable_engine_sleep: "local.sampler.sleep",
  plot_every: "rllm.trainer.plot_every",
  max_ckpt_num: "training.max_ckpt_num",
  max_ckpt_mem: "training.max_ckpt_mem",
  mixed_mm_data: "data.mixed_mm_data",
} as const satisfies Partial<Record<FlagName, string>>;

/** Flags that set a key only if given; otherwise the key keeps Hone's default. */
const ifGiven = {
  reward_pretrain: "rllm.reward.model",
  chunk_size: "local.chunk_size",
  use_tensorboard: "rllm.trainer.tensorboard_dir",
  use_wandb: "rllm.trainer.project_name",
  wandb_org: "rllm.trainer.wandb_entity",
  wandb_run_name: "rllm.trainer.experiment_name",
  save_path: "rllm.trainer.run_dir",
  processor: "model.processor",
} as const satisfies Partial<Record<FlagName, string>>;

/** Keys without a flag: key, value, reason. */
const fixed: readonly (readonly [string, unknown, string])[] = [
  ["rllm.backend", "local", "LightRFT trains on local hardware"],
  ["rllm.algorithm.lr_schedule", "cosine", "LightRFT's schedule"],
  ["rllm.algorithm.min_lr_ratio", 0.1, "LightRFT's schedule"],
  ["rllm.algorithm.estimator_preset", "lightrft", "LightRFT's constants"],
  ["rllm.algorithm.loss_agg_mode", "seq-mean-token-mean", "LightRFT averages the means of the sequences"],
];

/** Flags without an effect, with the reason. */
const withoutEffect = {
  micro_rollout_batch_size:
    "has no effect: local.max_sample_rows sets how many samples are generated concurrently, and local.micro_batch_tokens the batch size for their log-probabilities",
  packing_samples: "has no effect: Hone always packs samples",
  fused_linear_logprob: "has no effect: Hone never keeps all logits in memory; local.chunk_size sets how many",
} as const satisfies Partial<Record<FlagName, string>>;

/** The policy loss of estimators with their own loss; all others use ppo. */
const losses: Readonly<Record<string, string>> = { gspo: "gspo", gmpo: "gmpo", cpgd: "cpgd" };

const entries = <Row extends object>(table: Row) => Object.entries(table) as [FlagName, string][];

export function toSettings(parsed: ParsedFlags, world: World): LightRftSettings {
  const { values, given } = parsed;
  const settings: LightRftSettings = { flags: emptyLayer(), presets: emptyLayer(), warnings: [] };
  const { flags, presets, warnings } = settings;

  function set(flag: FlagName, key: string, value: unknown): void {
    const text = given.get(flag);
    if (text === undefined) preset(key, value, `LightRFT's default of --${flag}`);
    else put(flags, key, value, { kind: "override", text });
  }
  function preset(key: string, value: unknown, why: string): void {
    put(presets, key, value, { kind: "preset", text: why });
  }
  function noEffect(flag: FlagName, why: string): void {
    const text = given.get(flag);
    if (text !== undefined) warnings.push({ category: "unsupported", paths: [`--${flag}`], text: `${text}: ${why}` });
  }

  for (const [key, value, why] of fixed) preset(key, value, why);
  for (const [flag, key] of entries(sameValue)) set(flag, key, values[flag]);
  for (const [flag, key] of entries(ifGiven)) if (given.has(flag)) set(flag, key, values[flag]);
  for (const [flag, why] of entries(withoutEffect)) noEffect(flag, why);
  for (const [flag, key, value] of computed(values, given)) set(flag, key, value);

  if (values.generate_max_len === null) {
    preset("rllm.data.max_response_length", values.max_len, "--max_len limits prompt and response together");
  }
  if (values.save_steps === null) preset("rllm.trainer.freq_unit", "epochs", "--save_interval counts episodes");
  if (world.source === undefined) preset("local.processes", world.processes, "the minimum that the flags allow");
  else if (world.source === "WORLD_SIZE") {
    put(flags, "local.processes", world.processes, { kind: "override", text: `WORLD_SIZE=${world.processes}` });
  }
  if (values.fsdp) noEffect("zero_stage", "has no effect: --fsdp replaces it");
  if (!values.load_checkpoint) noEffect("ckpt_path", "has no effect without --load_checkpoint");
  if (values.save_path === null) {
    const text = "--save_path is not set: the run creates a new folder under runs/";
    warnings.push({ category: "coerced", paths: ["--save_path", "rllm.trainer.run_dir"], text });
  }
  return settings;
}

/** Keys whose value is computed from flags: the flag to report as the origin, key, value. */
function computed(values: Values, given: ParsedFlags["given"]): [FlagName, string, unknown][] {
  const { advantage_estimator: estimator, fsdp, adam_offload, save_steps, log_dir } = values;
  const samples = values.rollout_batch_size * values.n_samples_per_prompt;
  const optimizerSteps = Math.max(1, Math.ceil(samples / values.train_batch_size));
  const [beta1, beta2] = values.adam_betas;
  const loggers = ["console"];
  if (values.use_tensorboard !== null) loggers.push("tensorboard");
  if (values.use_wandb !== null) loggers.push("wandb");

  const rows: [FlagName, string, unknown][] = [
    ["adam_betas", "training.beta1", beta1],
    ["adam_betas", "training.beta2", beta2],
    ["train_batch_size", "training.num_minibatches", optimizerSteps],
    ["advantage_estimator", "rllm.algorithm.loss_fn", own(losses, estimator) ?? "ppo"],
    [
      "advantage_estimator",
      "rllm.algorithm.adv_estimator",
      estimator === "gspo" || estimator === "gmpo" ? "group_norm" : estimator,
    ],
    ["use_kl_loss", "rllm.algorithm.use_kl_in_reward", !values.use_kl_loss && values.init_kl_coef > 0],
    [fsdp ? "fsdp" : "zero_stage", "local.sharding", fsdp ? "fsdp" : `zero${values.zero_stage}`],
    [
      adam_offload ? "adam_offload" : "fsdp_cpu_offload",
      "local.offload_optimizer",
      adam_offload || values.fsdp_cpu_offload,
    ],
    [values.use_tensorboard === null ? "use_wandb" : "use_tensorboard", "rllm.trainer.logger", loggers],
    save_steps === null
      ? ["save_interval", "rllm.trainer.save_freq", values.save_interval]
      : ["save_steps", "rllm.trainer.save_freq", save_steps],
    ["load_checkpoint", "training.resume_mode", resumeMode(values)],
  ];
  if (values.generate_max_len !== null) {
    rows.push(["generate_max_len", "rllm.data.max_response_length", values.generate_max_len]);
  }
  if (values.remote_rm_url !== null) {
    const urls = values.remote_rm_url.split(",").map((url) => url.trim());
    rows.push(["remote_rm_url", "rllm.reward.remote_url", urls]);
  }
  if (given.has("micro_train_batch_size")) {
    const tokens = values.micro_train_batch_size * values.max_len;
    rows.push(["micro_train_batch_size", "local.micro_batch_tokens", tokens]);
  }
  if (given.has("kl_target") || estimator === "cpgd") {
    rows.push(["kl_target", "rllm.algorithm.kl_target", values.kl_target === 0 ? null : values.kl_target]);
  }
  if (values.bf16) rows.push(["bf16", "local.dtype", "bfloat16"]);
  if (log_dir !== null) {
    rows.push(["log_dir", "rllm.episode_logging.log_episodes", true]);
    rows.push(["log_dir", "rllm.episode_logging.episode_log_dir", log_dir]);
  }
  if (values.load_checkpoint && given.has("ckpt_path")) {
    rows.push(["ckpt_path", "training.resume_from_path", values.ckpt_path]);
  }
  return rows;
}

function resumeMode({ load_checkpoint, ckpt_path }: Values): "off" | "auto" | "path" {
  if (!load_checkpoint) return "off";
  return ckpt_path === null ? "auto" : "path";
}

function emptyLayer(): MapNode {
  return { kind: "map", origin: { kind: "preset", text: "LightRFT" }, entries: [] };
}

function put(layer: MapNode, key: string, value: unknown, origin: Origin): void {
  putNode(layer, key, nodeFromObject(value, origin));
}
