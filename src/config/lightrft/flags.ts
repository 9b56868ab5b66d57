/**
 * LightRFT's flags, one entry each: type, default, meaning, the keys that it sets, and its rules. Parsing, composition,
 * warnings, `hone lightrft --help` and the reference page derive from this table. The flags are those of LightRFT's
 * documentation, in its order, then those found only in LightRFT's scripts.
 */
import { join } from "node:path";
import { z } from "zod";
import { aboveZero, count, notNegative, off, on, optionalText, positive, share, text } from "../schema/about.ts";
import type { ConfigWarning } from "../tree.ts";

/** An entry of the table. Its functions get the values of all flags, defaults included. */
interface Flag<Type extends z.ZodType, Values> {
  /** The heading in the help and the reference page, from this flag on. */
  section?: string;
  /** Type, default and meaning. A flag without a default is required. */
  type: Type;
  /** Other spellings, from LightRFT's scripts. */
  aliases?: readonly string[];
  /** The flag that turns this switch off. */
  opposite?: string;
  /** The key that gets the flag's value, or keys with functions of their values; undefined leaves a key as it is. */
  sets?: string | Readonly<Record<string, (values: Values, line: CommandLine) => unknown>>;
  /** The keys are set only if the flag is given; otherwise they keep Hone's defaults, not LightRFT's. */
  onlyIfGiven?: true;
  /** The origin of the keys if the flag is not given and its own default is not the reason. */
  presetBecause?: string;
  /** Why the flag sets nothing. Reported only if it is given. */
  noEffect?: string | ((values: Values) => string | false);
  /** Why the command is refused. */
  refuses?: (values: Values, line: CommandLine) => string | false;
  warns?: (values: Values, line: CommandLine) => ConfigWarning | false;
}

/** What a rule may ask besides the flags' values. */
export interface CommandLine {
  isGiven(flag: string): boolean;
  /** Number of processes, one per GPU. */
  processes: number;
  /** `"4 processes (WORLD_SIZE)"` */
  processesText: string;
}

/** Gives the functions of each entry the types of all flags' values. */
function defineFlags<Types extends Readonly<Record<string, z.ZodType>>>(
  flags: {
    readonly [Name in keyof Types]: Flag<Types[Name], { [Other in keyof Types]: z.output<Types[Other]> }>;
  },
) {
  return flags;
}

const flags = defineFlags({
  pretrain: {
    section: "Model",
    type: text.describe("Model and tokenizer: a directory, a hub id, a .gguf file or an alias."),
    sets: "model.name",
  },
  reward_pretrain: {
    type: optionalText
      .describe("Reward model, in place of the script's own reward; rewards of --remote_rm_url are added.")
      .meta({
        note: "The documented default is the value of --pretrain; LightRFT's code has no default, and neither does Hone.",
      }),
    sets: {
      "rllm.reward.model": ({ reward_pretrain: model }) => model ?? undefined,
      "rllm.reward.own_weight": ({ reward_pretrain: model, remote_rm_url: urls }) =>
        model === null ? undefined : urls === null ? 0 : 1,
    },
  },
  remote_rm_url: {
    type: optionalText.describe("URL of a reward server; separate several with commas."),
    sets: { "rllm.reward.remote_url": ({ remote_rm_url: urls }) => urls?.split(",").map((url) => url.trim()) },
  },
  max_len: {
    type: count.min(2).default(4096).describe("Maximum sequence length in tokens, prompt and response together."),
    sets: "training.max_length",
  },
  prompt_max_len: {
    type: positive.default(2048).describe("Maximum prompt length in tokens."),
    sets: "rllm.data.max_prompt_length",
  },

  num_episodes: {
    section: "Training",
    type: positive.default(1).describe("Number of passes over the prompts."),
    sets: "rllm.trainer.total_epochs",
  },
  max_epochs: {
    type: positive.default(1).describe("Number of passes over the samples generated from a batch of prompts."),
    sets: "training.ppo_epochs",
  },
  actor_learning_rate: {
    type: notNegative.default(5e-7).describe("Peak learning rate of the policy."),
    sets: "training.learning_rate",
    warns: ({ actor_learning_rate: actor, critic_learning_rate: critic }) =>
      actor >= critic &&
      conflict(
        ["actor_learning_rate", "critic_learning_rate"],
        `--actor_learning_rate ${actor} is not below --critic_learning_rate ${critic}: ` +
          "a critic usually needs a higher learning rate than the policy",
      ),
  },
  critic_learning_rate: {
    type: notNegative
      .default(9e-6)
      .describe("Learning rate of the critic; used only by estimators with a critic (gae)."),
    sets: "rllm.critic.learning_rate",
  },
  lr_warmup_ratio: {
    type: share.default(0.03).describe("Fraction of all training steps used for warm-up."),
    sets: "rllm.algorithm.warmup_steps_ratio",
  },
  max_norm: {
    type: notNegative.default(1).describe("Clip the global gradient norm to this; 0 is off."),
    sets: "training.max_grad_norm",
  },
  l2: { type: notNegative.default(0).describe("Weight decay."), sets: "training.weight_decay" },
  adam_betas: {
    type: z.array(z.number()).length(2).default([0.9, 0.95]).describe("Adam's beta1 and beta2."),
    sets: { "training.beta1": ({ adam_betas }) => adam_betas[0], "training.beta2": ({ adam_betas }) => adam_betas[1] },
  },

  train_batch_size: {
    section: "Batch sizes",
    type: positive.describe("Number of samples per optimizer step, across all processes."),
    sets: {
      "training.num_minibatches": ({ train_batch_size, ...values }) =>
        Math.max(1, Math.ceil(rolloutSamples(values) / train_batch_size)),
    },
    refuses: ({ train_batch_size: batch, micro_train_batch_size: micro }, { processes, processesText }) =>
      batch % (micro * processes) !== 0 &&
      `${batch} samples are not divisible by --micro_train_batch_size ${micro} x ${processesText}`,
    warns: ({ train_batch_size: batch, ...values }) => {
      const { rollout_batch_size: prompts, n_samples_per_prompt: samples } = values;
      const all = rolloutSamples(values);
      if (batch === all) return false;
      const steps = Math.ceil(all / batch);
      const size = all % batch === 0 ? "" : ` of about ${Math.round(all / steps)}`;
      const text =
        batch < all
          ? `--train_batch_size ${batch} is below --rollout_batch_size ${prompts} x --n_samples_per_prompt ${samples} = ${all}: ` +
            `each rollout trains ${all} samples in ${steps} optimizer steps${size}`
          : `--train_batch_size ${batch} is above the ${all} samples of a rollout: each rollout is one optimizer step of ${all} samples`;
      return conflict(["train_batch_size", "rollout_batch_size"], text);
    },
  },
  micro_train_batch_size: {
    type: positive.default(1).describe("Number of samples per forward-backward pass of a process."),
    sets: {
      "local.micro_batch_tokens": ({ micro_train_batch_size, max_len }) => micro_train_batch_size * max_len,
    },
    onlyIfGiven: true,
  },
  rollout_batch_size: {
    type: positive.describe("Number of prompts per rollout, across all processes."),
    sets: "rllm.data.train_batch_size",
    refuses: ({ rollout_batch_size: prompts }, { processes, processesText }) =>
      prompts % processes !== 0 && `${prompts} prompts are not divisible by ${processesText}`,
  },
  micro_rollout_batch_size: {
    type: positive.default(2).describe("Number of samples per forward pass of a process after generation."),
    noEffect:
      "local.max_sample_rows sets how many samples are generated concurrently, and local.micro_batch_tokens the batch size for their log-probabilities",
  },

  advantage_estimator: {
    section: "Algorithm",
    type: z
      .enum(["group_norm", "reinforce", "cpgd", "gspo", "gmpo", "gae", "rloo", "reinforce_baseline"])
      .default("group_norm")
      .describe("Advantage estimator; gspo and gmpo use group_norm advantages with the loss of that name.")
      .meta({ note: "The last three are not in the documentation, but in LightRFT's code; gae trains a critic." }),
    sets: {
      "rllm.algorithm.adv_estimator": ({ advantage_estimator: name }) =>
        name === "gspo" || name === "gmpo" ? "group_norm" : name,
      "rllm.algorithm.loss_fn": ({ advantage_estimator: name }) =>
        name === "gspo" || name === "gmpo" || name === "cpgd" ? name : "ppo",
    },
  },
  n_samples_per_prompt: {
    type: positive.default(4).describe("Number of responses per prompt."),
    sets: "rllm.rollout.n",
    refuses: ({ advantage_estimator: estimator, n_samples_per_prompt: samples }) =>
      samples < 2 &&
      !["reinforce", "cpgd", "gae"].includes(estimator) &&
      `${estimator} compares the samples of a prompt, so set at least 2`,
  },
  kl_estimator: {
    type: z
      .enum(["k1", "k2", "k3"])
      .default("k3")
      .describe("Estimator of the KL divergence from the reference policy."),
    sets: "rllm.algorithm.kl_estimator",
  },
  init_kl_coef: {
    type: notNegative.default(0.001).describe("Weight of the KL divergence from the reference policy."),
    sets: "rllm.algorithm.kl_beta",
  },
  kl_target: {
    type: notNegative
      .default(0.01)
      .describe("Adapt the KL weight to keep the KL near this value; 0 keeps the weight fixed.")
      .meta({
        note: "Takes effect with cpgd, and whenever it is given; otherwise the weight is fixed, as in LightRFT's code.",
      }),
    sets: {
      "rllm.algorithm.kl_target": ({ kl_target, advantage_estimator, init_kl_coef }, { isGiven }) => {
        if (!isGiven("kl_target") && !(advantage_estimator === "cpgd" && init_kl_coef > 0)) return undefined;
        return kl_target === 0 ? null : kl_target;
      },
    },
    warns: ({ kl_target }, { isGiven }) =>
      isGiven("kl_target") &&
      kl_target !== 0 &&
      (kl_target < 0.001 || kl_target > 0.01) &&
      conflict(
        ["kl_target", "init_kl_coef"],
        `--kl_target ${kl_target} is outside the range 0.001 to 0.01, in which training is known to be stable`,
      ),
  },
  clip_range: {
    type: aboveZero.default(0.2).describe("Lower clipping bound of the ratio is 1 - clip_range."),
    aliases: ["eps_clip"],
    sets: "rllm.algorithm.eps_clip",
  },
  clip_range_higher: {
    type: aboveZero.default(0.3).describe("Upper clipping bound of the ratio is 1 + clip_range_higher."),
    sets: "rllm.algorithm.eps_clip_high",
  },
  temperature: {
    type: notNegative.default(1).describe("Sampling temperature."),
    sets: "rllm.rollout.train.temperature",
  },
  top_p: {
    type: z.number().gt(0).max(1).default(0.9).describe("Nucleus sampling threshold."),
    sets: "rllm.rollout.train.top_p",
  },

  zero_stage: {
    section: "Distributed training",
    type: count.min(1).max(3).default(2).describe("ZeRO stage: 1, 2 or 3."),
    sets: { "local.sharding": ({ zero_stage }) => `zero${zero_stage}` },
    noEffect: ({ fsdp }) => fsdp && "--fsdp replaces it",
  },
  fsdp: {
    type: off.describe("Use FSDP instead of ZeRO."),
    sets: { "local.sharding": ({ fsdp }) => (fsdp ? "fsdp" : undefined) },
  },
  fsdp_cpu_offload: {
    type: off.describe("With FSDP: keep the optimizer state in CPU memory."),
    sets: "local.offload_optimizer",
    noEffect: ({ adam_offload }) => adam_offload && "--adam_offload sets the same",
  },
  bf16: {
    type: off.describe("Use bfloat16; without it, the faster of bfloat16 and float32 on this machine."),
    sets: { "local.dtype": ({ bf16 }) => (bf16 ? "bfloat16" : undefined) },
  },
  gradient_checkpointing: {
    type: off.describe("Recompute activations in the backward pass to save memory."),
    sets: "local.gradient_checkpointing",
  },
  sp_size: {
    type: positive.default(1).describe("Number of processes that share one sequence."),
    sets: "local.sequence_parallel",
    refuses: ({ sp_size }, { processes, processesText }) =>
      processes % sp_size !== 0 && `${processesText} cannot be divided into groups of ${sp_size}`,
  },

  engine_type: {
    section: "Inference engine",
    type: z
      .enum(["vllm", "sglang"])
      .default("vllm")
      .describe("Inference server to sample with.")
      .meta({ note: "Without any --engine flag local.sampler.type keeps its default, auto." }),
    sets: {
      // Without any of these the default decides, which needs another environment only on a GPU.
      "local.sampler.type": ({ engine_type }, { isGiven }) =>
        ["engine_type", "engine_tp_size", "engine_mem_util", "enable_engine_sleep"].some(isGiven)
          ? engine_type
          : undefined,
    },
  },
  engine_tp_size: {
    type: positive
      .default(1)
      .describe("Number of GPUs that share the inference server's model; must divide the number of processes."),
    sets: "local.sampler.tensor_parallel",
    refuses: ({ engine_tp_size: size }, { processes, processesText }) =>
      processes % size !== 0 && `${processesText} cannot be divided into groups of ${size}`,
  },
  engine_mem_util: {
    type: z.number().gt(0).max(1).default(0.5).describe("Fraction of GPU memory for the inference server."),
    sets: "local.sampler.memory_share",
  },
  enable_engine_sleep: {
    type: on.describe("Free the inference server's memory during training; --disable_engine_sleep keeps it."),
    opposite: "disable_engine_sleep",
    sets: "local.sampler.sleep",
  },
  rm_use_engine: {
    type: off.describe("Run the reward model on inference servers."),
    sets: "rllm.reward.use_engine",
  },

  adam_offload: {
    section: "Memory",
    type: off.describe("Keep Adam's moments in CPU memory."),
    sets: { "local.offload_optimizer": ({ adam_offload }) => adam_offload || undefined },
  },
  use_mp_opt: {
    type: off.describe("Keep float32 master weights in the optimizer next to the model's bfloat16 weights."),
    sets: "local.mixed_precision_optimizer",
  },
  packing_samples: {
    type: off.describe(
      "Pack samples without padding. A single process always does; several pad sequences of similar length.",
    ),
    noEffect: "a single process always packs samples, and several pad sequences of similar length",
  },
  fused_linear_logprob: {
    type: off.describe("Compute log-probabilities without keeping all logits in memory. Hone always does this."),
    noEffect: "Hone never keeps all logits in memory; local.chunk_size sets how many",
  },
  chunk_size: {
    type: positive.default(4096).describe("Number of positions whose logits are in memory at the same time."),
    sets: "local.chunk_size",
    onlyIfGiven: true,
  },

  log_dir: {
    section: "Logging",
    type: optionalText.describe("Folder for plots, and for episodes as readable JSON files."),
    sets: {
      "rllm.episode_logging.log_episodes": ({ log_dir }) => (log_dir === null ? undefined : true),
      "rllm.episode_logging.episode_log_dir": ({ log_dir }) => log_dir ?? undefined,
      "rllm.trainer.plot_dir": ({ log_dir }) => (log_dir === null ? undefined : join(log_dir, "plots")),
    },
  },
  plot_every: {
    type: count
      .min(0)
      .default(10)
      .describe(
        "Every this many steps, draw plots as SVG and PNG, and log them with histograms and sampled episodes; 0 is off.",
      ),
    sets: "rllm.trainer.plot_every",
  },
  use_tensorboard: {
    type: optionalText.describe("Write TensorBoard files to this folder."),
    sets: {
      "rllm.trainer.tensorboard_dir": ({ use_tensorboard: folder }) => folder ?? undefined,
      "rllm.trainer.logger": (values) => (values.use_tensorboard === null ? undefined : loggersOf(values)),
    },
  },
  use_wandb: {
    type: optionalText.describe("Log to this project in Weights & Biases."),
    aliases: ["wandb_project"],
    sets: {
      "rllm.trainer.project_name": ({ use_wandb: project }) => project ?? undefined,
      "rllm.trainer.logger": (values) => (values.use_wandb === null ? undefined : loggersOf(values)),
    },
  },
  wandb_org: {
    type: optionalText.describe("Team or user in Weights & Biases."),
    sets: "rllm.trainer.wandb_entity",
    onlyIfGiven: true,
  },
  wandb_run_name: {
    type: optionalText.describe("Name of the run; without it, a name with the date and time."),
    sets: {
      "rllm.trainer.experiment_name": ({ wandb_run_name: name, use_wandb }) =>
        name ?? (use_wandb === null ? undefined : generatedName()),
    },
    presetBecause: "generated, because --wandb_run_name is not set",
  },

  save_path: {
    section: "Checkpoints",
    type: optionalText.describe("Run folder; without it, a new folder under runs/.").meta({
      note: "The documentation marks it as required, but its own multimodal example omits it.",
    }),
    sets: "rllm.trainer.run_dir",
    onlyIfGiven: true,
    warns: ({ save_path }) =>
      save_path === null && {
        category: "coerced",
        paths: ["--save_path", "rllm.trainer.run_dir"],
        text: "--save_path is not set: without rllm.trainer.run_dir, the run creates a new folder under runs/",
      },
  },
  ckpt_path: {
    type: optionalText.describe("Checkpoint to load with --load_checkpoint."),
    sets: "training.resume_from_path",
    onlyIfGiven: true,
    noEffect: ({ load_checkpoint }) => !load_checkpoint && "it requires --load_checkpoint",
  },
  load_checkpoint: {
    type: off.describe("Resume from --ckpt_path, or from the last checkpoint in --save_path."),
    sets: {
      "training.resume_mode": ({ load_checkpoint, ckpt_path }) =>
        !load_checkpoint ? "off" : ckpt_path === null ? "auto" : "path",
    },
  },
  save_interval: {
    type: count
      .default(1)
      .describe(
        "Save a checkpoint after every this many passes over the prompts (--num_episodes); 0 or less: only at the end.",
      ),
    sets: "rllm.trainer.save_freq",
    noEffect: ({ save_steps }) => save_steps !== null && "--save_steps replaces it",
  },
  max_ckpt_num: {
    type: positive.default(3).describe("Number of checkpoints to keep (the best and the newest are always kept)."),
    sets: "training.max_ckpt_num",
  },
  max_ckpt_mem: {
    type: aboveZero.default(1000).describe("Maximum total size of kept checkpoints in GB."),
    sets: "training.max_ckpt_mem",
  },

  reward_running_norm: {
    section: "Rewards",
    type: off.describe("Divide rewards by their running standard deviation."),
    sets: "rllm.reward.running_norm",
  },
  reward_running_norm_minus_mean: {
    type: off.describe("With --reward_running_norm: also subtract the running mean."),
    sets: "rllm.reward.running_norm_minus_mean",
  },
  advantages_norm: {
    type: off.describe("Normalize advantages over the batch to mean 0 and variance 1 (whitening)."),
    sets: "rllm.algorithm.advantages_norm",
  },
  advantage_clip: {
    type: notNegative.default(0).describe("Clip advantages to +/- this; 0 is off."),
    sets: "rllm.algorithm.advantage_clip",
  },
  reward_clip: {
    type: notNegative.default(0).describe("Clip rewards to +/- this; 0 is off."),
    sets: "rllm.reward.clip",
  },

  mixed_mm_data: {
    section: "Multimodal",
    type: off.describe("The data contains rows with images and rows without."),
    sets: "data.mixed_mm_data",
  },
  processor: {
    type: optionalText.describe("Processor of a model that accepts images; without it, the model's own."),
    sets: "model.processor",
    onlyIfGiven: true,
  },

  generate_max_len: {
    section: "Further flags of LightRFT's scripts",
    type: positive.nullable().default(null).describe("Maximum response length; without it, limited only by --max_len."),
    sets: { "rllm.data.max_response_length": ({ generate_max_len, max_len }) => generate_max_len ?? max_len },
    presetBecause: "--max_len limits prompt and response together",
  },
  save_steps: {
    type: count
      .nullable()
      .default(null)
      .describe("Save a checkpoint every this many rollouts, instead of --save_interval."),
    sets: {
      "rllm.trainer.save_freq": ({ save_steps }) => save_steps ?? undefined,
      "rllm.trainer.freq_unit": ({ save_steps }) => (save_steps === null ? "epochs" : undefined),
    },
    presetBecause: "--save_interval counts episodes",
  },
  critic_pretrain: {
    type: optionalText.describe("Model that the critic of gae starts from; without it, --pretrain."),
    sets: "rllm.critic.model",
    onlyIfGiven: true,
  },
  normalize_reward: {
    type: off.describe("Normalize scores by the mean and standard deviation that the reward model stores."),
    sets: "rllm.reward.normalize",
  },
  use_kl_loss: {
    type: off.describe("Add the KL to the loss; without it, the KL is subtracted from the reward."),
    sets: {
      "rllm.algorithm.use_kl_in_reward": ({ use_kl_loss, init_kl_coef }) => !use_kl_loss && init_kl_coef > 0,
    },
  },
  high_entropy_token_ratio: {
    type: share
      .default(0)
      .describe("Train only on this fraction of each reply's tokens, those with the highest entropy; 0 trains on all."),
    sets: "rllm.algorithm.high_entropy_token_ratio",
  },
  dynamic_sampling: {
    type: off.describe("Replace groups whose rewards are all equal with newly sampled ones (DAPO)."),
    sets: "rllm.dynamic_sampling.enable",
  },
  overlong_buffer: {
    type: off.describe("Penalize the reward of replies near the length limit (DAPO)."),
    sets: "rllm.reward.overlong.enable",
  },
  overlong_buffer_len: {
    type: positive.default(1024).describe("Number of tokens before the length limit over which the penalty grows."),
    sets: "rllm.reward.overlong.buffer_len",
  },
  overlong_buffer_penalty_factor: {
    type: notNegative.default(1).describe("Penalty at the length limit."),
    sets: "rllm.reward.overlong.penalty_factor",
  },
  seed: {
    type: count.min(0).default(42).describe("Random seed of the run; every random draw derives from it."),
    sets: "rllm.trainer.seed",
  },
  lora_rank: {
    type: count.min(0).default(0).describe("LoRA rank; 0 trains all weights."),
    sets: "model.lora_rank",
  },
  lora_alpha: {
    type: aboveZero.default(16).describe("LoRA alpha; the LoRA scale is lora_alpha / lora_rank."),
    sets: "model.lora_alpha",
  },
});

export type FlagName = keyof typeof flags;
/** The flags' values with defaults filled in. */
export type FlagValues = { [Name in FlagName]: z.output<(typeof flags)[Name]["type"]> };

/** The table with the same type for every entry. */
export const flagTable = Object.entries(flags) as unknown as readonly [FlagName, Flag<z.ZodType, FlagValues>][];

/** The keys that a flag may set. */
export function keysOf(name: FlagName): readonly string[] {
  const { sets = {} }: Pick<Flag<z.ZodType, FlagValues>, "sets"> = flags[name];
  return typeof sets === "string" ? [sets] : Object.keys(sets);
}

function conflict(names: readonly string[], text: string): ConfigWarning {
  return { category: "conflict", paths: names.map((name) => `--${name}`), text };
}

/** The number of samples of a rollout. */
function rolloutSamples(values: { rollout_batch_size: number; n_samples_per_prompt: number }): number {
  return values.rollout_batch_size * values.n_samples_per_prompt;
}

function loggersOf(values: { use_tensorboard: string | null; use_wandb: string | null }): string[] {
  const loggers = ["console"];
  if (values.use_tensorboard !== null) loggers.push("tensorboard");
  if (values.use_wandb !== null) loggers.push("wandb");
  return loggers;
}

/** `lightrft-20260131T0930` */
const generatedName = () => `lightrft-${new Date().toISOString().slice(0, 16).replace(/[-:]/g, "")}`;
