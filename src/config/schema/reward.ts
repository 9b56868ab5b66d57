/** `rllm.reward`: what happens to rewards before advantages, and graders that are servers or models. */
import { z } from "zod";
import { count, text } from "./about.ts";

const modelLater = "reward models are not run yet; the script's reward is what counts";

export const reward = z
  .strictObject({
    clip: z
      .number()
      .min(0)
      .default(0)
      .describe("Clip what the estimator made of the rewards to plus and minus this; 0 is off."),
    running_norm: z
      .boolean()
      .default(false)
      .describe("Divide what the estimator made of the rewards by its running standard deviation."),
    running_norm_minus_mean: z.boolean().default(false).describe("Subtract its running mean first."),
    overlong: z
      .strictObject({
        enable: z
          .boolean()
          .default(false)
          .describe("Take something off the reward of replies near the length limit (DAPO)."),
        buffer_len: count.min(1).default(512).describe("Tokens before the limit over which the penalty grows."),
        penalty_factor: z.number().min(0).default(1).describe("The penalty at the limit."),
      })
      .prefault({}),
    remote_url: z
      .array(text)
      .default([])
      .describe("Servers that grade: each gets the queries and answers with rewards, which are added up."),
    model: text
      .nullable()
      .default(null)
      .describe("A reward model: a Hugging Face directory or hub id.")
      .meta({ later: modelLater }),
    use_engine: z
      .boolean()
      .default(false)
      .describe("Run the reward model in an inference engine.")
      .meta({ later: modelLater }),
  })
  .prefault({});
