/** `training`, `validation`: the optimizer, minibatches, checkpoints, and Tinker's names of group sizes. */
import { z } from "zod";
import { count, share, text } from "./about.ts";

export const training = z
  .strictObject({
    group_size: count
      .min(1)
      .nullable()
      .default(null)
      .describe("Rollouts per task during training, under Tinker's name; null leaves rllm.rollout.n as it is.")
      .meta({
        note: "The document marks it as mandatory (???); in rLLM's code its absence means 8, as rllm.rollout.n says.",
      }),
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
    default_local_dir: text
      .default("/tmp/rllm-tinker-checkpoints")
      .describe("The run's folder, where the names of checkpoints that the service holds are kept.")
      .meta({
        instead: "rllm.trainer.run_dir",
        backends: ["tinker"],
        note: "Where it is set, rllm.trainer.run_dir is it; else runs have folders of their own under runs/. rLLM's tinker.yaml says checkpoints/{project}/{experiment}.",
      }),
    resume_mode: z
      .enum(["auto", "path", "off"])
      .default("auto")
      .describe("auto goes on from the run folder's last checkpoint, if any; path from resume_from_path.")
      .meta({
        aliases: { disable: "off", resume_path: "path" },
        note: "rLLM's and verl's disable and resume_path are understood too.",
      }),
    resume_from_path: z.string().nullable().default(null).describe("The checkpoint that resume_mode=path starts from."),
    resume_from_tinker_id: z
      .string()
      .nullable()
      .default(null)
      .describe("Older name: resume_mode=path with this as resume_from_path.")
      .meta({ backends: ["tinker"] }),
    max_ckpt_num: count.min(1).default(3).describe("Checkpoints kept (the best and the newest are always kept)."),
    max_ckpt_mem: z.number().gt(0).default(1000).describe("Total size of checkpoints kept, in GB."),
    best_metric: z
      .string()
      .default("val/reward")
      .describe("The validation metric that picks the best checkpoint (higher is better)."),
    keep_best: z
      .boolean()
      .default(false)
      .describe("Save a checkpoint at every new best value of best_metric too, between those of save_freq."),
  })
  .prefault({});

export const validation = z
  .strictObject({
    group_size: count
      .min(1)
      .nullable()
      .default(null)
      .describe("Rollouts per task during validation, under Tinker's name; null leaves rllm.rollout.n_val as it is.")
      .meta({
        note: "The document marks it as mandatory (???); in rLLM's code its absence means 1, as rllm.rollout.n_val says.",
      }),
  })
  .prefault({});
