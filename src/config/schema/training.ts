/** `training`, `validation`: optimizer, minibatches, checkpoints, and Tinker's names for group sizes. */
import { z } from "zod";
import { aboveZero, count, notNegative, off, positive, section, share, text } from "./about.ts";

export const training = section({
  source: z
    .enum(["rollouts", "rows", "pairs"])
    .default("rollouts")
    .describe(
      "What the run learns from: rollouts (hone train), rows (hone sft) or pairs (hone dpo). The command sets it.",
    ),
  start_from: text
    .nullable()
    .default(null)
    .describe(
      "Checkpoint whose weights the run starts from, with a fresh optimizer. A KL term and pairs compare with these weights. `hone train --from RUN` sets it, and the settings of the run's model.",
    ),
  group_size: positive
    .nullable()
    .default(null)
    .describe(
      "Rollouts per task during training (Tinker's name for rllm.rollout.n); null leaves rllm.rollout.n unchanged.",
    )
    .meta({
      note: "rLLM's documentation marks it as mandatory (???); its code uses 8 if it is missing, the default of rllm.rollout.n.",
    }),
  learning_rate: notNegative
    .default(2e-5)
    .describe("Peak learning rate.")
    .meta({ note: "The verl backend's default is 1e-6." }),
  lr_schedule: z
    .enum(["constant", "linear", "cosine"])
    .default("constant")
    .describe("Learning rate schedule after warm-up."),
  warmup_steps_ratio: share.default(0).describe("Fraction of all training steps used for warm-up."),
  optimizer: z
    .enum(["adamw", "adamw_8bit"])
    .default("adamw")
    .describe("adamw, or adamw_8bit: Adam's moments in 8 bits, by bitsandbytes, which is installed on first use.")
    .meta({ backends: ["local"] }),
  beta1: z.number().min(0).lt(1).default(0.9).describe("Adam's beta1."),
  beta2: z.number().min(0).lt(1).default(0.95).describe("Adam's beta2."),
  eps: aboveZero.default(1e-8).describe("Adam's epsilon."),
  weight_decay: notNegative.default(0).describe("AdamW's decoupled weight decay."),
  max_grad_norm: notNegative.default(1).describe("Clip the global gradient norm to this; 0 is off."),
  max_length: count.min(2).default(32768).describe("Maximum sequence length in tokens, prompt and response together."),
  num_minibatches: positive.default(1).describe("Number of optimizer steps per pass over a batch."),
  ppo_epochs: positive.default(1).describe("Number of passes over each batch."),
  default_local_dir: text
    .default("/tmp/rllm-tinker-checkpoints")
    .describe("Run folder, which stores the names of the checkpoints that the Tinker service holds.")
    .meta({
      instead: "rllm.trainer.run_dir",
      backends: ["tinker"],
      note: "If set, it becomes rllm.trainer.run_dir; otherwise each run gets its own folder under runs/. rLLM's tinker.yaml has checkpoints/{project}/{experiment}.",
    }),
  resume_mode: z
    .enum(["auto", "path", "off"])
    .default("auto")
    .describe(
      "auto resumes from the last checkpoint in the run folder, if any; path resumes from resume_from_path; off starts fresh.",
    )
    .meta({
      aliases: { disable: "off", resume_path: "path" },
      note: "The values disable and resume_path of rLLM and verl are accepted as aliases of off and path.",
    }),
  resume_from_path: z.string().nullable().default(null).describe("Checkpoint to resume from with resume_mode=path."),
  resume_from_tinker_id: z
    .templateLiteral(["tinker://", text])
    .meta({ title: "tinker://RUN/weights/NAME" })
    .nullable()
    .default(null)
    .describe("Checkpoint of a Tinker service to resume from: resume_from_path with resume_mode=path.")
    .meta({ backends: ["tinker"] }),
  max_ckpt_num: positive
    .default(3)
    .describe("Number of checkpoints to keep (the best and the newest are always kept)."),
  max_ckpt_mem: aboveZero.default(1000).describe("Maximum total size of kept checkpoints in GB."),
  best_metric: z
    .string()
    .default("val/reward")
    .describe(
      "Validation metric that selects the best checkpoint (higher is better): val/reward, or val/NAME/reward or val/NAME/pass@N with the name of the validation dataset.",
    ),
  keep_best: off.describe("Also save a checkpoint at every new best value of best_metric, in addition to save_freq."),
});

export const validation = section({
  group_size: positive
    .nullable()
    .default(null)
    .describe(
      "Rollouts per task during validation (Tinker's name for rllm.rollout.n_val); null leaves rllm.rollout.n_val unchanged.",
    )
    .meta({
      note: "rLLM's documentation marks it as mandatory (???); its code uses 1 if it is missing, the default of rllm.rollout.n_val.",
    }),
});
