/**
 * LightRFT's flags: names, types, defaults and meanings as its documentation gives them, and the spellings of its own
 * scripts. The one source of parsing, `hone lightrft --help` and the reference page.
 */
import { z } from "zod";
import { count, text } from "../schema/about.ts";

const flag = z.boolean().default(false);
const positive = count.min(1);
const optionalText = text.nullable().default(null);

/** By the sections of the documentation; the last one holds flags that only LightRFT's scripts know. */
export const flagSections = {
  Model: {
    pretrain: text.describe("The model and its tokenizer: a directory, a hub id, a .gguf file or an alias.").meta({
      written: "required",
    }),
    reward_pretrain: optionalText.describe("A reward model; without it the script's own reward is what counts.").meta({
      note: "The documentation's default is the same as --pretrain; in LightRFT's code it is none, as here.",
    }),
    remote_rm_url: optionalText.describe("Address of a reward server; several are separated by commas."),
    max_len: count.min(2).default(4096).describe("Longest sequence, prompt and response together."),
    prompt_max_len: positive.default(2048).describe("Longest prompt in tokens."),
  },
  Training: {
    num_episodes: positive.default(1).describe("Passes over the prompts."),
    max_epochs: positive.default(1).describe("Passes over what was generated from a batch of prompts."),
    actor_learning_rate: z.number().min(0).default(5e-7).describe("Peak learning rate of the policy."),
    critic_learning_rate: z
      .number()
      .min(0)
      .default(9e-6)
      .describe("Learning rate of the critic; only estimators with a critic (gae) have one."),
    lr_warmup_ratio: z.number().min(0).max(1).default(0.03).describe("Share of all optimizer steps that warm up."),
    max_norm: z.number().min(0).default(1).describe("Clip the gradient's global norm; 0 is off."),
    l2: z.number().min(0).default(0).describe("Weight decay."),
    adam_betas: z.array(z.number()).length(2).default([0.9, 0.95]).describe("Adam's two betas."),
  },
  "Batch sizes": {
    train_batch_size: positive.describe("Samples per optimizer step, over all processes.").meta({
      written: "required",
    }),
    micro_train_batch_size: positive.default(1).describe("Samples per forward and backward of one process."),
    rollout_batch_size: positive.describe("Prompts per rollout, over all processes.").meta({ written: "required" }),
    micro_rollout_batch_size: positive.default(2).describe("Samples per forward of one process after generation."),
  },
  Algorithm: {
    advantage_estimator: z
      .enum(["group_norm", "reinforce", "cpgd", "gspo", "gmpo"])
      .default("group_norm")
      .describe("Advantages; gspo and gmpo are group_norm with the loss of that name."),
    n_samples_per_prompt: positive.default(4).describe("Responses per prompt."),
    kl_estimator: z.enum(["k1", "k2", "k3"]).default("k3").describe("Estimator of the KL to the reference."),
    init_kl_coef: z.number().min(0).default(0.001).describe("Weight of that KL."),
    kl_target: z
      .number()
      .min(0)
      .default(0.01)
      .describe("Adapt the weight so that the KL stays near this; 0 keeps it fixed.")
      .meta({
        note: "Acts for cpgd, and wherever it is given; else the weight is fixed, as LightRFT's code has it.",
      }),
    clip_range: z.number().gt(0).default(0.2).describe("The ratio is clipped below at 1 - clip_range."),
    clip_range_higher: z.number().gt(0).default(0.3).describe("The ratio is clipped above at 1 + clip_range_higher."),
    temperature: z.number().min(0).default(1).describe("Sampling temperature."),
    top_p: z.number().gt(0).max(1).default(0.9).describe("Nucleus sampling threshold."),
  },
  "Distributed training": {
    zero_stage: count.min(1).max(3).default(2).describe("Stage of ZeRO: 1, 2 or 3."),
    fsdp: flag.describe("FSDP instead of ZeRO."),
    fsdp_cpu_offload: flag.describe("With FSDP: keep the optimizer's state in main memory."),
    bf16: flag.describe("bfloat16; without it the faster of bfloat16 and float32 on this machine."),
    gradient_checkpointing: flag.describe("Recompute activations in the backward pass to save memory."),
    sp_size: positive.default(1).describe("Processes that share one sequence."),
  },
  "Inference engine": {
    engine_type: z.enum(["vllm", "sglang"]).default("vllm").describe("Inference server."),
    engine_tp_size: positive
      .default(1)
      .describe("GPUs that share the server's model; divides the number of processes."),
    engine_mem_util: z.number().gt(0).max(1).default(0.5).describe("Share of GPU memory for the server."),
    enable_engine_sleep: z
      .boolean()
      .default(true)
      .describe("Free the server's memory while the trainer trains; --disable_engine_sleep keeps it."),
    rm_use_engine: flag.describe("Run the reward model in an inference engine."),
  },
  Memory: {
    adam_offload: flag.describe("Keep Adam's moments in main memory."),
    use_mp_opt: flag.describe("Keep float32 weights in the optimizer beside bfloat16 ones in the model."),
    packing_samples: flag.describe("Pack samples without padding. Hone always does."),
    fused_linear_logprob: flag.describe("Log-probabilities without holding all logits. Hone always does."),
    chunk_size: positive.default(4096).describe("Positions whose logits exist at the same time."),
  },
  Logging: {
    log_dir: optionalText.describe("Folder for readable episodes."),
    plot_every: count.min(0).default(10).describe("Plot the distribution of lengths every so many steps."),
    use_tensorboard: optionalText.describe("Write TensorBoard's files to this folder."),
    use_wandb: optionalText.describe("Project in Weights & Biases."),
    wandb_org: optionalText.describe("Organisation in Weights & Biases."),
    wandb_run_name: optionalText.describe("Name of the run."),
  },
  Checkpoints: {
    save_path: optionalText.describe("The run's folder; without it one under runs/.").meta({
      note: "The documentation calls it required, yet its own multimodal example lacks it.",
    }),
    ckpt_path: optionalText.describe("Checkpoint to load; with --load_checkpoint."),
    load_checkpoint: flag.describe("Go on from --ckpt_path, or from the last checkpoint in --save_path."),
    save_interval: count.default(1).describe("Save a checkpoint every so many episodes; 0 or less only at the end."),
    max_ckpt_num: positive.default(3).describe("Checkpoints kept."),
    max_ckpt_mem: z.number().gt(0).default(1000).describe("Total size of checkpoints kept, in GB."),
  },
  Rewards: {
    reward_running_norm: flag.describe("Divide rewards by their running standard deviation."),
    reward_running_norm_minus_mean: flag.describe("Subtract their running mean too."),
    advantages_norm: flag.describe("Whiten the advantages over the batch."),
    advantage_clip: z.number().min(0).default(0).describe("Clip advantages to plus and minus this; 0 is off."),
    reward_clip: z.number().min(0).default(0).describe("Clip rewards to plus and minus this; 0 is off."),
  },
  Multimodal: {
    mixed_mm_data: flag.describe("The data has rows with images and rows without."),
    processor: optionalText.describe("Processor of a model that takes images; without it the model's own."),
  },
  "Further flags of LightRFT's scripts": {
    generate_max_len: positive.nullable().default(null).describe("Longest response; without it what --max_len leaves."),
    save_steps: count.nullable().default(null).describe("Save every so many rollouts instead of episodes."),
    use_kl_loss: flag.describe("The KL in the loss; without it in the reward."),
    high_entropy_token_ratio: z.number().min(0).max(1).default(0).describe("Train only this share of tokens; 0: all."),
    dynamic_sampling: flag.describe("Sample anew in place of groups whose rewards are all alike (DAPO)."),
    overlong_buffer: flag.describe("Take something off the reward of replies near the length limit (DAPO)."),
    overlong_buffer_len: positive.default(1024).describe("Tokens before the limit over which that penalty grows."),
    overlong_buffer_penalty_factor: z.number().min(0).default(1).describe("That penalty at the limit."),
    seed: count.min(0).default(42).describe("Every random draw of the run derives from it."),
    lora_rank: count.min(0).default(0).describe("LoRA rank; 0 trains all weights."),
    lora_alpha: z.number().gt(0).default(16).describe("LoRA scale is lora_alpha / lora_rank."),
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
/** What the flags say, defaults filled in. */
export type FlagValues = { [F in FlagName]: z.output<(typeof flags)[F]> };
