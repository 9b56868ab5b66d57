/** Converts LightRFT's flags to keys of the configuration tree. */
import { join } from "node:path";
import { type MapNode, nodeFromObject } from "../tree/node.ts";
import type { Origin } from "../tree/origin.ts";
import { putNode } from "../tree/tree.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { FlagName, FlagValues } from "./flags.ts";
import type { ParsedFlags } from "./parse-flags.ts";
import type { World } from "./rules.ts";

export interface LightRftSettings {
  /** Keys set by given flags. */
  flags: MapNode;
  /** LightRFT's defaults for all other flags. */
  presets: MapNode;
  warnings: ConfigWarning[];
}

/** The keys that a flag sets. Text: why the flag has no effect, reported only if it was given. */
type Outcome = Readonly<Record<string, unknown>> | string;

/** A key gets the flag's value, whether given or LightRFT's default. */
type Rule = string | ((values: FlagValues, isGiven: (flag: FlagName) => boolean) => Outcome);

/** The key gets the value only if the flag is given; otherwise it keeps Hone's default. */
const ifGiven =
  (flag: FlagName, key: string): Rule =>
  (values, isGiven) =>
    isGiven(flag) ? { [key]: values[flag] } : {};

/** Without any of these the local engine samples, which needs neither a GPU nor another environment. */
const engineFlags: readonly FlagName[] = ["engine_type", "engine_tp_size", "engine_mem_util", "enable_engine_sleep"];

const rules: Readonly<Record<FlagName, Rule>> = {
  pretrain: "model.name",
  reward_pretrain: ({ reward_pretrain: model, remote_rm_url: urls }) =>
    model === null ? {} : { "rllm.reward.model": model, "rllm.reward.own_weight": urls === null ? 0 : 1 },
  remote_rm_url: ({ remote_rm_url: urls }) =>
    urls === null ? {} : { "rllm.reward.remote_url": urls.split(",").map((url) => url.trim()) },
  max_len: "training.max_length",
  prompt_max_len: "rllm.data.max_prompt_length",

  num_episodes: "rllm.trainer.total_epochs",
  max_epochs: "training.ppo_epochs",
  actor_learning_rate: "training.learning_rate",
  critic_learning_rate: "rllm.critic.learning_rate",
  lr_warmup_ratio: "rllm.algorithm.warmup_steps_ratio",
  max_norm: "training.max_grad_norm",
  l2: "training.weight_decay",
  adam_betas: ({ adam_betas: [beta1, beta2] }) => ({ "training.beta1": beta1, "training.beta2": beta2 }),

  train_batch_size: ({ rollout_batch_size, n_samples_per_prompt, train_batch_size }) => ({
    "training.num_minibatches": Math.max(1, Math.ceil((rollout_batch_size * n_samples_per_prompt) / train_batch_size)),
  }),
  micro_train_batch_size: ({ micro_train_batch_size, max_len }, isGiven) =>
    isGiven("micro_train_batch_size") ? { "local.micro_batch_tokens": micro_train_batch_size * max_len } : {},
  rollout_batch_size: "rllm.data.train_batch_size",
  micro_rollout_batch_size: () =>
    "local.max_sample_rows sets how many samples are generated concurrently, and local.micro_batch_tokens the batch size for their log-probabilities",

  advantage_estimator: ({ advantage_estimator: name }) => ({
    "rllm.algorithm.adv_estimator": name === "gspo" || name === "gmpo" ? "group_norm" : name,
    "rllm.algorithm.loss_fn": name === "gspo" || name === "gmpo" || name === "cpgd" ? name : "ppo",
  }),
  n_samples_per_prompt: "rllm.rollout.n",
  kl_estimator: "rllm.algorithm.kl_estimator",
  init_kl_coef: "rllm.algorithm.kl_beta",
  kl_target: ({ kl_target, advantage_estimator, init_kl_coef }, isGiven) =>
    isGiven("kl_target") || (advantage_estimator === "cpgd" && init_kl_coef > 0)
      ? { "rllm.algorithm.kl_target": kl_target === 0 ? null : kl_target }
      : {},
  clip_range: "rllm.algorithm.eps_clip",
  clip_range_higher: "rllm.algorithm.eps_clip_high",
  temperature: "rllm.rollout.train.temperature",
  top_p: "rllm.rollout.train.top_p",

  zero_stage: ({ zero_stage, fsdp }) => (fsdp ? "--fsdp replaces it" : { "local.sharding": `zero${zero_stage}` }),
  fsdp: ({ fsdp }) => (fsdp ? { "local.sharding": "fsdp" } : {}),
  fsdp_cpu_offload: ({ fsdp_cpu_offload, adam_offload }) =>
    adam_offload ? "--adam_offload sets the same" : { "local.offload_optimizer": fsdp_cpu_offload },
  bf16: ({ bf16 }) => (bf16 ? { "local.dtype": "bfloat16" } : {}),
  gradient_checkpointing: "local.gradient_checkpointing",
  sp_size: "local.sequence_parallel",

  engine_type: ({ engine_type }, isGiven) => (engineFlags.some(isGiven) ? { "local.sampler.type": engine_type } : {}),
  engine_tp_size: "local.sampler.tensor_parallel",
  engine_mem_util: "local.sampler.memory_share",
  enable_engine_sleep: "local.sampler.sleep",
  rm_use_engine: "rllm.reward.use_engine",

  adam_offload: ({ adam_offload }) => (adam_offload ? { "local.offload_optimizer": true } : {}),
  use_mp_opt: "local.mixed_precision_optimizer",
  packing_samples: () => "a single process always packs samples, and several pad sequences of similar length",
  fused_linear_logprob: () => "Hone never keeps all logits in memory; local.chunk_size sets how many",
  chunk_size: ifGiven("chunk_size", "local.chunk_size"),

  log_dir: ({ log_dir }) =>
    log_dir === null
      ? {}
      : {
          "rllm.episode_logging.log_episodes": true,
          "rllm.episode_logging.episode_log_dir": log_dir,
          "rllm.trainer.plot_dir": join(log_dir, "plots"),
        },
  plot_every: "rllm.trainer.plot_every",
  use_tensorboard: (values) =>
    values.use_tensorboard === null
      ? {}
      : { "rllm.trainer.tensorboard_dir": values.use_tensorboard, "rllm.trainer.logger": loggersOf(values) },
  use_wandb: (values) =>
    values.use_wandb === null
      ? {}
      : { "rllm.trainer.project_name": values.use_wandb, "rllm.trainer.logger": loggersOf(values) },
  wandb_org: ifGiven("wandb_org", "rllm.trainer.wandb_entity"),
  wandb_run_name: ({ wandb_run_name: name, use_wandb }) =>
    name === null && use_wandb === null ? {} : { "rllm.trainer.experiment_name": name ?? generatedName() },

  save_path: ifGiven("save_path", "rllm.trainer.run_dir"),
  ckpt_path: ({ ckpt_path, load_checkpoint }, isGiven) => {
    if (!load_checkpoint) return "it requires --load_checkpoint";
    return isGiven("ckpt_path") ? { "training.resume_from_path": ckpt_path } : {};
  },
  load_checkpoint: ({ load_checkpoint, ckpt_path }) => ({
    "training.resume_mode": !load_checkpoint ? "off" : ckpt_path === null ? "auto" : "path",
  }),
  save_interval: ({ save_steps, save_interval }) =>
    save_steps === null ? { "rllm.trainer.save_freq": save_interval } : "--save_steps replaces it",
  max_ckpt_num: "training.max_ckpt_num",
  max_ckpt_mem: "training.max_ckpt_mem",

  reward_running_norm: "rllm.reward.running_norm",
  reward_running_norm_minus_mean: "rllm.reward.running_norm_minus_mean",
  advantages_norm: "rllm.algorithm.advantages_norm",
  advantage_clip: "rllm.algorithm.advantage_clip",
  reward_clip: "rllm.reward.clip",

  mixed_mm_data: "data.mixed_mm_data",
  processor: ifGiven("processor", "model.processor"),

  generate_max_len: ({ generate_max_len, max_len }) => ({
    "rllm.data.max_response_length": generate_max_len ?? max_len,
  }),
  save_steps: ({ save_steps }) =>
    save_steps === null ? { "rllm.trainer.freq_unit": "epochs" } : { "rllm.trainer.save_freq": save_steps },
  critic_pretrain: ifGiven("critic_pretrain", "rllm.critic.model"),
  normalize_reward: "rllm.reward.normalize",
  use_kl_loss: ({ use_kl_loss, init_kl_coef }) => ({
    "rllm.algorithm.use_kl_in_reward": !use_kl_loss && init_kl_coef > 0,
  }),
  high_entropy_token_ratio: "rllm.algorithm.high_entropy_token_ratio",
  dynamic_sampling: "rllm.dynamic_sampling.enable",
  overlong_buffer: "rllm.reward.overlong.enable",
  overlong_buffer_len: "rllm.reward.overlong.buffer_len",
  overlong_buffer_penalty_factor: "rllm.reward.overlong.penalty_factor",
  seed: "rllm.trainer.seed",
  lora_rank: "model.lora_rank",
  lora_alpha: "model.lora_alpha",
};

/** Keys without a flag: key, value, reason. */
const fixed: readonly (readonly [string, unknown, string])[] = [
  ["rllm.backend", "local", "LightRFT trains on local hardware"],
  ["rllm.algorithm.lr_schedule", "cosine", "LightRFT's schedule"],
  ["rllm.algorithm.min_lr_ratio", 0.1, "LightRFT's schedule"],
  ["rllm.algorithm.estimator_preset", "lightrft", "LightRFT's constants"],
  ["rllm.algorithm.loss_agg_mode", "seq-mean-token-mean", "LightRFT averages the means of the sequences"],
];

/** Origins of keys that a flag sets although it was not given, where its own default is not the reason. */
const reasons: Partial<Record<FlagName, string>> = {
  generate_max_len: "--max_len limits prompt and response together",
  save_steps: "--save_interval counts episodes",
  wandb_run_name: "generated, because --wandb_run_name is not set",
};

export function toSettings({ values, given }: ParsedFlags, world: World): LightRftSettings {
  const flags = emptyLayer();
  const presets = emptyLayer();
  const warnings: ConfigWarning[] = [];
  const preset = (key: string, value: unknown, text: string) => put(presets, key, value, { kind: "preset", text });

  for (const [key, value, why] of fixed) preset(key, value, why);
  for (const [flag, rule] of Object.entries(rules) as [FlagName, Rule][]) {
    const outcome = typeof rule === "string" ? { [rule]: values[flag] } : rule(values, (name) => given.has(name));
    const text = given.get(flag);
    if (typeof outcome === "string") {
      if (text === undefined) continue;
      warnings.push({ category: "unsupported", paths: [`--${flag}`], text: `${text} has no effect: ${outcome}` });
      continue;
    }
    for (const [key, value] of Object.entries(outcome)) {
      if (text === undefined) preset(key, value, reasons[flag] ?? `LightRFT's default of --${flag}`);
      else put(flags, key, value, { kind: "flag", text });
    }
  }
  if (world.source === undefined) preset("local.processes", world.processes, "the minimum that the flags allow");
  else if (world.source === "WORLD_SIZE") {
    put(flags, "local.processes", world.processes, { kind: "flag", text: `WORLD_SIZE=${world.processes}` });
  }
  if (values.save_path === null) {
    const text = "--save_path is not set: without rllm.trainer.run_dir, the run creates a new folder under runs/";
    warnings.push({ category: "coerced", paths: ["--save_path", "rllm.trainer.run_dir"], text });
  }
  return { flags, presets, warnings };
}

function loggersOf({ use_tensorboard, use_wandb }: FlagValues): string[] {
  const loggers = ["console"];
  if (use_tensorboard !== null) loggers.push("tensorboard");
  if (use_wandb !== null) loggers.push("wandb");
  return loggers;
}

/** `lightrft-20260131T0930` */
const generatedName = () => `lightrft-${new Date().toISOString().slice(0, 16).replace(/[-:]/g, "")}`;

function emptyLayer(): MapNode {
  return { kind: "map", origin: { kind: "preset", text: "LightRFT" }, entries: [] };
}

function put(layer: MapNode, key: string, value: unknown, origin: Origin): void {
  putNode(layer, key, nodeFromObject(value, origin));
}
