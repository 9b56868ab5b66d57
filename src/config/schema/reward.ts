/** `rllm.reward`: reward processing, reward servers and reward models. */
import { z } from "zod";
import { aboveZero, count, notNegative, off, positive, section, text } from "./about.ts";

const roleWeights = z.union([z.number(), z.record(z.string(), z.number())]);

export const reward = section({
  clip: notNegative
    .default(0)
    .describe(
      "Clip the estimator's result for each trajectory to +/- this, before rllm.algorithm.advantages_norm; 0 is off.",
    ),
  running_norm: off.describe("Divide the estimator's result for each trajectory by its running standard deviation."),
  running_norm_minus_mean: off.describe("With running_norm: also subtract the running mean."),
  overlong: section({
    enable: off.describe("Penalize the reward of replies near the length limit (DAPO)."),
    buffer_len: positive
      .default(512)
      .describe("Number of tokens before the limit (rllm.data.max_response_length) over which the penalty grows."),
    penalty_factor: notNegative.default(1).describe("Penalty at the length limit."),
  }),
  remote_url: z
    .array(text)
    .default([])
    .describe("URLs of reward servers: each receives the queries and returns rewards, which are summed."),
  model: z
    .union([text, z.array(text).min(1)])
    .nullable()
    .default(null)
    .describe(
      "Reward models: a Hugging Face directory or hub id of a sequence-classification model with one label or of a model with a value head, or a list of them. Each scores the last conversation of every trajectory, rendered with its own tokenizer and chat template.",
    ),
  model_weights: z
    .array(roleWeights)
    .default([])
    .describe(
      "Weight of each reward model's score in the reward, in the order of rllm.reward.model; empty means 1 for each. A map sets weights per role, e.g. {solver: 1}; the model does not score roles that are not in the map.",
    ),
  own_weight: roleWeights
    .default(1)
    .describe(
      "With reward models: weight of the script's own reward, which is added to the weighted scores. 0 ignores it, even if it is unknown. A map has weights per role; roles that it does not name have 1.",
    ),
  normalize: off.describe(
    "Normalize scores by the mean and standard deviation that a reward model's files store, as OpenRLHF's do: mean and std in config.json.",
  ),
  use_engine: off.describe(
    "Run the reward models on inference servers: those in rllm.reward.engine_url, or else one vLLM server per model, started by Hone.",
  ),
  engine_url: z
    .array(text)
    .refine((urls) => urls.every((url) => /^https?:\/\/[^/]/.test(url)), "must begin with http:// or https://")
    .default([])
    .describe(
      "Addresses of vLLM servers (--runner pooling) or SGLang servers (--is-embedding) that serve the reward models. Several servers of one model share its work. Their API key is the environment variable VLLM_API_KEY.",
    ),
  batch_size: positive
    .default(64)
    .describe("Maximum number of replies per request to a reward server (remote_url, use_engine)."),
  timeout: aboveZero.max(300).default(120).describe("Time limit in seconds for a request to a reward server."),
  retries: count.min(0).default(4).describe("Maximum number of retries of a failed request to a reward server."),
});
