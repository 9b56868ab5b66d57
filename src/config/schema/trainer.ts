/** `rllm.trainer`, `rllm.async_training`, `rllm.episode_logging`: how long, how often, what is kept. */
import { z } from "zod";
import { count, text } from "./about.ts";

export const trainer = z
  .strictObject({
    total_epochs: count.min(1).default(10).describe("Passes over the training data."),
    total_batches: count.nullable().default(-1).describe("Training steps in all; null, 0 and less go by total_epochs."),
    logger: z
      .array(z.enum(["console", "tensorboard", "wandb"]))
      .default(["console"])
      .describe("Where metrics go besides the run folder."),
    project_name: text.default("rllm-training").describe("Groups runs in the loggers."),
    experiment_name: text.default("default").describe("Names the run."),
    wandb_entity: text
      .nullable()
      .default(null)
      .describe("Team or user in Weights & Biases; null is the account's own."),
    tensorboard_dir: text
      .nullable()
      .default(null)
      .describe("Folder of TensorBoard's files; null is tensorboard/ in the run's folder."),
    test_freq: count
      .default(5)
      .describe("Validate every so many training steps (or epochs, see freq_unit); 0 or less only at the end.")
      .meta({ note: "The document says epochs; rLLM's code and verl count training steps, as Hone does." }),
    save_freq: count
      .default(20)
      .describe("Save a checkpoint every so many training steps (or epochs); 0 or less only at the end.")
      .meta({ note: "The document says epochs; rLLM's code and verl count training steps, as Hone does." }),
    freq_unit: z.enum(["steps", "epochs"]).default("steps").describe("What test_freq and save_freq count."),
    val_before_train: z
      .boolean()
      .default(true)
      .describe("Validate before the first step.")
      .meta({ note: "rLLM's own base.yaml says false; the document says true, as Hone does." }),
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
    plot_every: count
      .min(0)
      .default(10)
      .describe(
        "Draw plots/ (curves of reward, reply length and entropy; the distribution of reply lengths) and log a table of sampled episodes every so many steps; 0 is off.",
      ),
  })
  .prefault({});

export const asyncTraining = z
  .strictObject({
    enable: z.boolean().default(false).describe("Generate and train at the same time."),
    mini_batch_size: count.min(1).default(64).describe("Task groups per optimizer step."),
    fwd_bwd_group_size: count
      .min(1)
      .nullable()
      .default(null)
      .describe("Groups per forward-backward pass; divides mini_batch_size, which null stands for."),
    staleness_threshold: z
      .number()
      .min(0)
      .default(0)
      .describe("How far generation may run ahead, as a share of the groups between two weight updates."),
    trigger_parameter_sync_step: count
      .min(1)
      .default(1)
      .describe("Optimizer steps between two updates of the sampler's weights."),
    partial_rollout: z
      .boolean()
      .default(false)
      .describe("Let running rollouts go on over a weight update instead of waiting for their end."),
    episode_offload_dir: text
      .nullable()
      .default(null)
      .describe("Folder for episodes whose group is not complete; null keeps them in memory."),
    trajectory_group_offload_dir: text
      .nullable()
      .default(null)
      .describe("Folder for groups that wait for training; null keeps them in memory."),
  })
  .prefault({});

export const episodeLogging = z
  .strictObject({
    log_episodes: z
      .boolean()
      .default(false)
      .describe(
        "Write each episode as a readable JSON file of its own. The run folder keeps all episodes in any case.",
      ),
    episode_log_dir: text
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      .default("logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}")
      .describe("Where those files go."),
  })
  .prefault({});
