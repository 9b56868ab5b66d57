/**
 * LightRFT's flags: names, types, defaults and meanings from its documentation, and the spellings in its own scripts.
 * The single source of parsing, `hone lightrft --help` and the reference page.
 */
import { z } from "zod";
import { aboveZero, count, notNegative, off, on, optionalText, positive, share, text } from "../schema/about.ts";

/** Flags by section of the documentation; the last section has flags found only in LightRFT's scripts. */
export const flagSections = {
  Model: {
    pretrain: text.describe("Model and tokenizer: a directory, a hub id, a .gguf file or an alias.").meta({
      written: "required",
    }),
    reward_pretrain: optionalText
      .describe("Reward model, in place of the script's own reward; rewards of --remote_rm_url are added.")
      .meta({
        note: "The documented default is the value of --pretrain; LightRFT's code has no default, and neither does Hone.",
      }),
    remote_rm_url: optionalText.describe("URL of a reward server; separate several with commas."),
    max_len: count.min(2).default(4096).describe("Maximum sequence length in tokens, prompt and response together."),
    prompt_max_len: positive.default(2048).describe("Maximum prompt length in tokens."),
  },
  Training: {
    num_episodes: positive.default(1).describe("Number of passes over the prompts."),
    max_epochs: positive.default(1).describe("Number of passes over the samples generated from a batch of prompts."),
    actor_learning_rate: notNegative.default(5e-7).describe("Peak learning rate of the policy."),
    critic_learning_rate: notNegative
      .default(9e-6)
      .describe("Learning rate of the critic; used only by estimators with a critic (gae)."),
    lr_warmup_ratio: share.default(0.03).describe("Fraction of all training steps used for warm-up."),
    max_norm: notNegative.default(1).describe("Clip the global gradient norm to this; 0 is off."),
    l2: notNegative.default(0).describe("Weight decay."),
    adam_betas: z.array(z.number()).length(2).default([0.9, 0.95]).describe("Adam's beta1 and beta2."),
  },
  "Batch sizes": {
    train_batch_size: positive.describe("Number of samples per optimizer step, across all processes.").meta({
      written: "required",
    }),
    micro_train_batch_size: positive.default(1).describe("Number of samples per forward-backward pass of a process."),
    rollout_batch_size: positive
      .describe("Number of prompts per rollout, across all processes.")
      .meta({ written: "required" }),
    micro_rollout_batch_size: positive
      .default(2)
      .describe("Number of samples per forward pass of a process after generation."),
  },
  Algorithm: {
    advantage_estimator: z
      .enum(["group_norm", "reinforce", "cpgd", "gspo", "gmpo", "gae", "rloo", "reinforce_baseline"])
      .default("group_norm")
      .describe("Advantage estimator; gspo and gmpo use group_norm advantages with the loss of that name.")
      .meta({ note: "The last three are not in the documentation, but in LightRFT's code; gae trains a critic." }),
    n_samples_per_prompt: positive.default(4).describe("Number of responses per prompt."),
    kl_estimator: z
      .enum(["k1", "k2", "k3"])
      .default("k3")
      .describe("Estimator of the KL divergence from the reference policy."),
    init_kl_coef: notNegative.default(0.001).describe("Weight of the KL divergence from the reference policy."),
    kl_target: notNegative
      .default(0.01)
      .describe("Adapt the KL weight to keep the KL near this value; 0 keeps the weight fixed.")
      .meta({
        note: "Takes effect with cpgd, and whenever it is given; otherwise the weight is fixed, as in LightRFT's code.",
      }),
    clip_range: aboveZero.default(0.2).describe("Lower clipping bound of the ratio is 1 - clip_range."),
    clip_range_higher: aboveZero.default(0.3).describe("Upper clipping bound of the ratio is 1 + clip_range_higher."),
    temperature: notNegative.default(1).describe("Sampling temperature."),
    top_p: z.number().gt(0).max(1).default(0.9).describe("Nucleus sampling threshold."),
  },
  "Distributed training": {
    zero_stage: count.min(1).max(3).default(2).describe("ZeRO stage: 1, 2 or 3."),
    fsdp: off.describe("Use FSDP instead of ZeRO."),
    fsdp_cpu_offload: off.describe("With FSDP: keep the optimizer state in CPU memory."),
    bf16: off.describe("Use bfloat16; without it, the faster of bfloat16 and float32 on this machine."),
    gradient_checkpointing: off.describe("Recompute activations in the backward pass to save memory."),
    sp_size: positive.default(1).describe("Number of processes that share one sequence."),
  },
  "Inference engine": {
    engine_type: z
      .enum(["vllm", "sglang"])
      .default("vllm")
      .describe("Inference server to sample with.")
      .meta({ note: "Without any --engine flag the trainer samples itself." }),
    engine_tp_size: positive
      .default(1)
      .describe("Number of GPUs that share the inference server's model; must divide the number of processes."),
    engine_mem_util: z.number().gt(0).max(1).default(0.5).describe("Fraction of GPU memory for the inference server."),
    enable_engine_sleep: on.describe(
      "Free the inference server's memory during training; --disable_engine_sleep keeps it.",
    ),
    rm_use_engine: off.describe("Run the reward model on inference servers."),
  },
  Memory: {
    adam_offload: off.describe("Keep Adam's moments in CPU memory."),
    use_mp_opt: off.describe("Keep float32 master weights in the optimizer next to the model's bfloat16 weights."),
    packing_samples: off.describe(
      "Pack samples without padding. A single process always does; several pad sequences of similar length.",
    ),
    fused_linear_logprob: off.describe(
      "Compute log-probabilities without keeping all logits in memory. Hone always does this.",
    ),
    chunk_size: positive.default(4096).describe("Number of positions whose logits are in memory at the same time."),
  },
  Logging: {
    log_dir: optionalText.describe("Folder for plots, and for episodes as readable JSON files."),
    plot_every: count
      .min(0)
      .default(10)
      .describe(
        "Every this many steps, draw plots as SVG and PNG, and log them with histograms and sampled episodes; 0 is off.",
      ),
    use_tensorboard: optionalText.describe("Write TensorBoard files to this folder."),
    use_wandb: optionalText.describe("Log to this project in Weights & Biases."),
    wandb_org: optionalText.describe("Team or user in Weights & Biases."),
    wandb_run_name: optionalText.describe("Name of the run; without it, a name with the date and time."),
  },
  Checkpoints: {
    save_path: optionalText.describe("Run folder; without it, a new folder under runs/.").meta({
      note: "The documentation marks it as required, but its own multimodal example omits it.",
    }),
    ckpt_path: optionalText.describe("Checkpoint to load with --load_checkpoint."),
    load_checkpoint: off.describe("Resume from --ckpt_path, or from the last checkpoint in --save_path."),
    save_interval: count
      .default(1)
      .describe(
        "Save a checkpoint after every this many passes over the prompts (--num_episodes); 0 or less: only at the end.",
      ),
    max_ckpt_num: positive
      .default(3)
      .describe("Number of checkpoints to keep (the best and the newest are always kept)."),
    max_ckpt_mem: aboveZero.default(1000).describe("Maximum total size of kept checkpoints in GB."),
  },
  Rewards: {
    reward_running_norm: off.describe("Divide rewards by their running standard deviation."),
    reward_running_norm_minus_mean: off.describe("With --reward_running_norm: also subtract the running mean."),
    advantages_norm: off.describe("Normalize advantages over the batch to mean 0 and variance 1 (whitening)."),
    advantage_clip: notNegative.default(0).describe("Clip advantages to +/- this; 0 is off."),
    reward_clip: notNegative.default(0).describe("Clip rewards to +/- this; 0 is off."),
  },
  Multimodal: {
    mixed_mm_data: off.describe("The data contains rows with images and rows without."),
    processor: optionalText.describe("Processor of a model that accepts images; without it, the model's own."),
  },
  "Further flags of LightRFT's scripts": {
    generate_max_len: positive
      .nullable()
      .default(null)
      .describe("Maximum response length; without it, limited only by --max_len."),
    save_steps: count
      .nullable()
      .default(null)
      .describe("Save a checkpoint every this many rollouts, instead of --save_interval."),
    critic_pretrain: optionalText.describe("Model that the critic of gae starts from; without it, --pretrain."),
    normalize_reward: off.describe("Normalize scores by the mean and standard deviation that the reward model stores."),
    use_kl_loss: off.describe("Add the KL to the loss; without it, the KL is subtracted from the reward."),
    high_entropy_token_ratio: share
      .default(0)
      .describe("Train only on this fraction of each reply's tokens, those with the highest entropy; 0 trains on all."),
    dynamic_sampling: off.describe("Replace groups whose rewards are all equal with newly sampled ones (DAPO)."),
    overlong_buffer: off.describe("Penalize the reward of replies near the length limit (DAPO)."),
    overlong_buffer_len: positive
      .default(1024)
      .describe("Number of tokens before the length limit over which the penalty grows."),
    overlong_buffer_penalty_factor: notNegative.default(1).describe("Penalty at the length limit."),
    seed: count.min(0).default(42).describe("Random seed of the run; every random draw derives from it."),
    lora_rank: count.min(0).default(0).describe("LoRA rank; 0 trains all weights."),
    lora_alpha: aboveZero.default(16).describe("LoRA alpha; the LoRA scale is lora_alpha / lora_rank."),
  },
} as const;

/** Flags whose script spelling differs from the documentation's. */
export const aliases: Readonly<Record<string, string>> = {
  eps_clip: "clip_range",
  wandb_project: "use_wandb",
  disable_engine_sleep: "enable_engine_sleep",
};

type Sections = typeof flagSections;
type Shapes = { [S in keyof Sections]: Sections[S] }[keyof Sections];
type UnionToIntersection<U> = (U extends unknown ? (one: U) => void : never) extends (all: infer I) => void ? I : never;

/** Every flag's schema by its documented name. */
export const flags = Object.assign({}, ...Object.values(flagSections)) as UnionToIntersection<Shapes>;

export type FlagName = keyof typeof flags;
/** The flags' values with defaults filled in. */
export type FlagValues = { [F in FlagName]: z.output<(typeof flags)[F]> };
