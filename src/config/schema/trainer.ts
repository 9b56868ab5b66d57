/** `rllm.trainer`, `rllm.async_training`, `rllm.episode_logging`: duration, schedules and logging of a run. */
import { z } from "zod";
import { count, notNegative, off, on, optionalText, positive, section, text } from "./about.ts";

export const trainer = section({
  total_epochs: positive.default(10).describe("Number of passes over the training data."),
  total_batches: count
    .nullable()
    .default(-1)
    .describe("Total number of training steps; null, 0 or less uses total_epochs instead."),
  logger: z
    .array(z.enum(["console", "tensorboard", "wandb", "mlflow", "trackio"]))
    .default(["console"])
    .describe("Where metrics are logged, besides the run folder."),
  project_name: text.default("rllm-training").describe("Project name that groups runs in the loggers."),
  experiment_name: text.default("default").describe("Name of the run."),
  wandb_entity: optionalText.describe("Team or user in Weights & Biases; null is the account's default."),
  tensorboard_dir: optionalText.describe("Folder for TensorBoard files; null is tensorboard/ in the run folder."),
  test_freq: count
    .default(5)
    .describe("Validate every this many training steps (or epochs, see freq_unit); 0 or less: only at the end.")
    .meta({ note: "rLLM's documentation says epochs; its code and verl count training steps, and so does Hone." }),
  save_freq: count
    .default(20)
    .describe(
      "Save a checkpoint every this many training steps (or epochs, see freq_unit); 0 or less: only at the end.",
    )
    .meta({ note: "rLLM's documentation says epochs; its code and verl count training steps, and so does Hone." }),
  freq_unit: z.enum(["steps", "epochs"]).default("steps").describe("Unit of test_freq and save_freq."),
  val_before_train: on
    .describe("Validate before the first step.")
    .meta({ note: "rLLM's base.yaml has false; Hone follows rLLM's documentation (true)." }),
  val_only: off.describe("Validate and stop."),
  seed: count.min(0).default(0).describe("Random seed of the run; every random draw derives from it."),
  run_dir: z.string().nullable().default(null).describe("Run folder; null creates runs/{project}-{experiment}-{date}."),
  max_bad_steps: positive
    .default(3)
    .describe("Stop after this many consecutive steps with a non-finite loss or gradient."),
  plot_every: count
    .min(0)
    .default(10)
    .describe(
      "Every this many steps, draw plots as SVG and PNG (curves of reward, reply length and entropy; the distribution of reply lengths). The loggers receive the plots, histograms of reply length, reward and entropy, and sampled episodes. 0 is off.",
    ),
  plot_dir: optionalText.describe("Folder for plots; null is plots/ in the run folder."),
});

export const asyncTraining = section({
  enable: off.describe("Generate and train at the same time."),
  mini_batch_size: positive.default(64).describe("Number of task groups per optimizer step."),
  fwd_bwd_group_size: positive
    .nullable()
    .default(null)
    .describe("Number of groups per forward-backward pass; must divide mini_batch_size. null is mini_batch_size."),
  staleness_threshold: notNegative
    .default(0)
    .describe("How far generation may run ahead of training, as a fraction of the groups between two weight updates."),
  trigger_parameter_sync_step: positive
    .default(1)
    .describe("Number of optimizer steps between two updates of the sampler's weights."),
  partial_rollout: off.describe(
    "Continue running rollouts across a weight update instead of waiting for them to finish. A reply that is being sampled continues with the new weights; on SGLang and on vLLM servers without /inference/v1/generate, it keeps its LoRA adapter until it ends.",
  ),
  episode_offload_dir: optionalText.describe(
    "Folder for episodes whose group is incomplete; null keeps them in memory.",
  ),
  trajectory_group_offload_dir: optionalText.describe(
    "Folder for groups waiting for training; null keeps them in memory.",
  ),
});

export const episodeLogging = section({
  log_episodes: off.describe(
    "Also write each episode to its own readable JSON file. The run folder always keeps all episodes.",
  ),
  episode_log_dir: text
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
    .default("logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}")
    .describe("Folder for the files of log_episodes."),
});
