/** Filters of training data: flags at the top of `rllm`, `compact_filtering`, `rejection_sample`, `dynamic_sampling`. */
import { z } from "zod";
import { off, on, positive, section } from "./about.ts";

export const processingFlags = {
  disable_thinking: off.describe("Request replies without thinking, through the chat template."),
  accumulate_reasoning: off.describe(
    "Keep the thinking of earlier replies in later prompts, even if the chat template drops it.",
  ),
  mask_truncated_samples: off.describe("Exclude sequences whose last reply was truncated from the loss."),
  filter_token_mismatch: on
    .describe("Drop trajectories in which later prompts do not repeat the history as sampled; false splits them there.")
    .meta({ note: "rLLM's unified trainer no longer reads this key." }),
};

const mask = (byDefault: boolean, what: string) => z.boolean().default(byDefault).describe(`Exclude episodes ${what}.`);

export const compactFiltering = section({
  enable: off.describe("Exclude episodes from training depending on how they ended."),
  mask_max_prompt_length_exceeded: mask(true, "whose prompt became too long"),
  mask_max_response_length_exceeded: mask(true, "whose reply was truncated at the maximum length"),
  mask_env_done: mask(false, "that the environment ended"),
  mask_max_turns_exceeded: mask(true, "that reached the maximum number of turns"),
  mask_timeout: mask(true, "that timed out"),
  mask_unknown: mask(false, "that ended for an unknown reason"),
  mask_error: mask(true, "that failed"),
});

export const rejectionSample = section({
  enable: off.describe(
    "Train only once the batch has enough partially solved tasks (some rollouts solve the task, others do not).",
  ),
  mode: z
    .enum(["none", "episode", "group"])
    .nullable()
    .default(null)
    .describe(
      "episode: draw until the batch has enough partially solved tasks; group, none: draw once; null: episode if enabled, else none.",
    ),
  multiplier: z.number().min(1).default(1).describe("Draw this many times the tasks of a batch.").meta({
    note: "rLLM's documentation says rollouts; its code multiplies tasks, and so does Hone.",
  }),
  min_partial_solve_tasks: positive.default(1).describe("Minimum number of partially solved tasks in a batch."),
  min_trajs_per_group: positive
    .default(2)
    .describe("Drop groups with fewer trajectories than this, or than rllm.rollout.n if that is lower.")
    .meta({ note: "Applies even if rejection sampling is off, as in rLLM." }),
  max_rounds: positive
    .default(10)
    .describe("episode: stop drawing after this many rounds and train on what was collected."),
  filter_uniform_groups: off.describe("Drop groups whose rewards are all equal, because they have no training signal."),
});

export const dynamicSampling = section({
  enable: off.describe("Replace tasks whose rewards do not differ with newly drawn ones (DAPO)."),
  max_rounds: positive.default(10).describe("Stop drawing after this many rounds and train on what was collected."),
});
