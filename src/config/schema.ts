/**
 * The one source of Hone's configuration: types, defaults, validation, help and editor completion come from here.
 * Keys are spelled as the reference documents spell them; only keys that act are listed.
 */
import { z } from "zod";

const count = z.number().int();
const share = z.number().min(0).max(1);

const sampling = z
  .strictObject({
    temperature: z.number().min(0).default(1).describe("Sampling temperature; 0 is greedy."),
    top_p: z.number().gt(0).max(1).default(1).describe("Nucleus sampling threshold; 1 is off."),
    top_k: count.default(-1).describe("Sample from the k most likely tokens; -1 is off."),
    min_p: share.default(0).describe("Drop tokens less likely than min_p times the likeliest; 0 is off."),
  })
  .prefault({});

const rllm = z
  .strictObject({
    backend: z.enum(["local"]).default("local").describe("The engine that samples and trains."),
    rollout: z
      .strictObject({
        n: count.min(1).default(8).describe("Rollouts per task during training."),
        n_val: count.min(1).default(1).describe("Rollouts per task during validation."),
      })
      .prefault({}),
    workflow: z
      .strictObject({
        n_parallel_tasks: count.min(1).default(256).describe("Rollouts that run at the same time."),
        retry_limit: count.min(0).default(3).describe("Retries of a failed rollout."),
        raise_on_error: z
          .boolean()
          .default(true)
          .describe("Stop the run when a rollout still fails after its retries."),
        timeout: z.number().gt(0).default(1e6).describe("Seconds one attempt at a rollout may take."),
      })
      .prefault({}),
    trainer: z
      .strictObject({
        total_epochs: count.min(1).default(10).describe("Passes over the training data."),
        total_batches: count.default(-1).describe("Training steps in all; -1 goes by total_epochs."),
        logger: z
          .array(z.enum(["console", "tensorboard", "wandb"]))
          .default(["console"])
          .describe("Where metrics go besides the run folder."),
        project_name: z.string().min(1).default("hone").describe("Groups runs in the loggers."),
        experiment_name: z.string().min(1).default("default").describe("Names the run."),
        test_freq: count
          .default(5)
          .describe("Validate every so many training steps (or epochs, see freq_unit); <= 0 only at the end."),
        save_freq: count.default(20).describe("Save a checkpoint every so many training steps; <= 0 only at the end."),
        freq_unit: z.enum(["steps", "epochs"]).default("steps").describe("What test_freq and save_freq count."),
        val_before_train: z.boolean().default(true).describe("Validate before the first step."),
        val_only: z.boolean().default(false).describe("Validate and stop."),
        seed: count.min(0).default(0).describe("Every random draw of the run derives from it."),
        run_dir: z
          .string()
          .nullable()
          .default(null)
          .describe("The run's folder; null makes runs/{project}-{experiment}-{date}."),
        max_bad_steps: count
          .min(1)
          .default(3)
          .describe("Stop after so many steps in a row whose loss or gradient is not finite."),
      })
      .prefault({}),
    algorithm: z
      .strictObject({
        adv_estimator: z.enum(["grpo"]).default("grpo").describe("Advantage estimator."),
        norm_adv_by_std_in_grpo: z
          .boolean()
          .default(true)
          .describe("Divide GRPO's advantages by the group's standard deviation."),
        loss_fn: z.enum(["ppo", "importance_sampling"]).nullable().default(null).describe("Policy loss; null is ppo."),
        eps_clip: z.number().gt(0).default(0.2).describe("PPO clips the ratio below at 1 - eps_clip."),
        eps_clip_high: z
          .number()
          .gt(0)
          .nullable()
          .default(null)
          .describe("PPO clips the ratio above at 1 + eps_clip_high; null is eps_clip."),
        loss_agg_mode: z
          .enum(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
          .default("token-mean")
          .describe("How token losses become one figure."),
        kl_beta: z
          .number()
          .min(0)
          .default(0)
          .describe("Weight of the KL to the reference (the base model) in the loss; 0 is off."),
        kl_estimator: z.enum(["k1", "k2", "k3", "abs"]).default("k3").describe("Estimator of that KL."),
        rollout_correction: z
          .strictObject({
            bypass_mode: z
              .boolean()
              .default(false)
              .describe("true: the sampler's log-probabilities are the old policy's; false: the trainer's own."),
          })
          .prefault({}),
      })
      .prefault({}),
  })
  .prefault({});

export const configSchema = z.strictObject({
  rllm,
  model: z
    .strictObject({
      name: z
        .string()
        .min(1)
        .default("smollm2-135m-instruct")
        .describe("An alias, a Hugging Face directory, a .gguf file or a hub id."),
      lora_rank: count.min(0).default(32).describe("LoRA rank; 0 trains all weights."),
      lora_alpha: z.number().gt(0).default(32).describe("LoRA scale is lora_alpha / lora_rank."),
      train_unembed: z.boolean().default(false).describe("LoRA on the output embedding."),
      train_attn: z.boolean().default(true).describe("LoRA on attention."),
      train_mlp: z.boolean().default(true).describe("LoRA on the MLPs."),
    })
    .prefault({}),
  training: z
    .strictObject({
      learning_rate: z.number().min(0).default(2e-5).describe("Peak learning rate."),
      lr_schedule: z.enum(["constant", "linear", "cosine"]).default("constant").describe("What follows the warm-up."),
      warmup_steps_ratio: share.default(0).describe("Share of all steps that warm up."),
      beta1: z.number().min(0).lt(1).default(0.9).describe("Adam's beta1."),
      beta2: z.number().min(0).lt(1).default(0.95).describe("Adam's beta2."),
      eps: z.number().gt(0).default(1e-8).describe("Adam's epsilon."),
      weight_decay: z.number().min(0).default(0).describe("AdamW's decoupled weight decay."),
      max_grad_norm: z.number().min(0).default(1).describe("Clip the gradient's global norm; 0 is off."),
      max_length: count.min(2).default(32768).describe("Longest sequence, prompt and response together."),
      num_minibatches: count.min(1).default(1).describe("Optimizer steps per pass over a batch."),
      ppo_epochs: count.min(1).default(1).describe("Passes over each batch."),
      resume_mode: z
        .enum(["auto", "path", "off"])
        .default("auto")
        .describe("auto goes on from the run folder's last checkpoint, if any."),
      resume_from_path: z
        .string()
        .nullable()
        .default(null)
        .describe("The checkpoint that resume_mode=path starts from."),
      max_ckpt_num: count.min(1).default(3).describe("Checkpoints kept (the best and the newest are always kept)."),
      max_ckpt_mem: z.number().gt(0).default(1000).describe("Total size of checkpoints kept, in GB."),
      best_metric: z
        .string()
        .default("val/reward")
        .describe("The validation metric that picks the best checkpoint (higher is better)."),
    })
    .prefault({}),
  sampling: z.strictObject({ train: sampling, val: sampling }).prefault({}),
  data: z
    .strictObject({
      max_prompt_length: count
        .min(1)
        .default(2048)
        .describe("Longest prompt in tokens; a longer one ends the rollout."),
      max_response_length: count.min(1).default(2048).describe("Longest reply in tokens."),
      train_batch_size: count.min(1).default(64).describe("Tasks per training step."),
      val_batch_size: count.min(1).default(32).describe("Tasks validated at a time."),
      shuffle: z.boolean().default(true).describe("Shuffle the training data anew each epoch."),
    })
    .prefault({}),
  local: z
    .strictObject({
      device: z.string().default("auto").describe("auto, cpu, cuda, cuda:N or mps."),
      dtype: z
        .enum(["auto", "float32", "bfloat16"])
        .default("auto")
        .describe("auto is bfloat16 where the machine computes it faster."),
      micro_batch_tokens: count
        .min(0)
        .default(0)
        .describe("Packed tokens per forward-backward; 0 picks by memory. Halved on out-of-memory."),
      gradient_checkpointing: z
        .boolean()
        .default(false)
        .describe("Recompute activations in the backward pass to save memory."),
      chunk_size: count.min(1).default(256).describe("Trained positions whose logits exist at the same time."),
      max_sample_rows: count.min(1).default(256).describe("Sequences sampled at the same time."),
      threads: count.min(0).default(0).describe("Threads of the tensor library; 0 is one per core."),
    })
    .prefault({}),
});

/** The composed configuration, all defaults filled in. */
export type Config = z.output<typeof configSchema>;
/** What a user writes: any part of it. */
export type ConfigInput = z.input<typeof configSchema>;
