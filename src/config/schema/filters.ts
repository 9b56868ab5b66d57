/** What is left out of training: flags at the top of `rllm`, `compact_filtering`, `rejection_sample`, `dynamic_sampling`. */
import { z } from "zod";
import { count } from "./about.ts";

export const processingFlags = {
  disable_thinking: z.boolean().default(false).describe("Ask the chat template for replies without thinking."),
  accumulate_reasoning: z
    .boolean()
    .default(false)
    .describe("Keep the thinking of earlier replies in the prompt of later ones, even where the template drops it."),
  mask_truncated_samples: z.boolean().default(false).describe("Leave replies that were cut off out of the loss."),
  filter_token_mismatch: z
    .boolean()
    .default(true)
    .describe("Drop trajectories whose history was not kept as it was sampled; false splits them there.")
    .meta({ note: "rLLM's unified trainer no longer reads it." }),
};

const mask = (byDefault: boolean, what: string) =>
  z.boolean().default(byDefault).describe(`Leave out episodes ${what}.`);

export const compactFiltering = z
  .strictObject({
    enable: z.boolean().default(false).describe("Leave episodes out of training by how they ended."),
    mask_max_prompt_length_exceeded: mask(true, "whose prompt became too long"),
    mask_max_response_length_exceeded: mask(true, "whose reply was cut off at its longest"),
    mask_env_done: mask(false, "that the environment ended"),
    mask_max_turns_exceeded: mask(true, "that ran out of turns"),
    mask_timeout: mask(true, "that ran out of time"),
    mask_unknown: mask(false, "that ended for no known reason"),
    mask_error: mask(true, "that failed"),
  })
  .prefault({});

export const rejectionSample = z
  .strictObject({
    enable: z
      .boolean()
      .default(false)
      .describe("Train only once enough tasks are solved by some of their rollouts and not by others."),
    mode: z
      .enum(["none", "episode", "group"])
      .nullable()
      .default(null)
      .describe(
        "episode: gather until there are enough such tasks; group: drop small groups only; null: episode where enabled.",
      ),
    multiplier: z.number().min(1).default(1).describe("Draw so many times the tasks of a batch.").meta({
      note: "The document says rollouts; rLLM's code multiplies the tasks, as Hone does.",
    }),
    min_partial_solve_tasks: count
      .min(1)
      .default(1)
      .describe("Tasks solved by some of their rollouts that a batch needs."),
    min_trajs_per_group: count
      .min(1)
      .default(2)
      .describe("Groups with fewer trajectories are dropped.")
      .meta({ note: "rLLM applies it even where rejection sampling is off." }),
    max_rounds: count
      .min(1)
      .default(10)
      .describe("episode: stop drawing after so many rounds and train on what there is."),
    filter_uniform_groups: z
      .boolean()
      .default(false)
      .describe("Drop groups whose rewards are all equal, which teach nothing."),
  })
  .prefault({});

export const dynamicSampling = z
  .strictObject({
    enable: z
      .boolean()
      .default(false)
      .describe("Draw new tasks in place of those whose rollouts are all right or all wrong (DAPO)."),
    max_rounds: count.min(1).default(10).describe("Stop drawing after so many rounds and train on what there is."),
  })
  .prefault({});
