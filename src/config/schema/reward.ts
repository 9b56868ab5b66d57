/** `rllm.reward`: reward processing, reward servers and reward models. */
import { z } from "zod";
import { notNegative, off, optionalText, positive, section, text } from "./about.ts";

const modelLater = "reward models are not supported yet; the script's reward is used";

export const reward = section({
  clip: notNegative.default(0).describe("Clip the estimator's output for each reward to +/- this; 0 is off."),
  running_norm: off.describe("Divide the estimator's output for each reward by its running standard deviation."),
  running_norm_minus_mean: off.describe("With running_norm: subtract the running mean first."),
  overlong: section({
    enable: off.describe("Penalize the reward of replies near the length limit (DAPO)."),
    buffer_len: positive.default(512).describe("Number of tokens before the limit over which the penalty grows."),
    penalty_factor: notNegative.default(1).describe("Penalty at the length limit."),
  }),
  remote_url: z
    .array(text)
    .default([])
    .describe("URLs of reward servers: each receives the queries and returns rewards, which are summed."),
  model: optionalText.describe("Reward model: a Hugging Face directory or hub id.").meta({ later: modelLater }),
  use_engine: off.describe("Run the reward model in an inference engine.").meta({ later: modelLater }),
});
