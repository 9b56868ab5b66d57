/** Trains the agent of agent.ts unchanged: the AI SDK calls the model through the run's gateway, which records tokens. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { defineExperiment, firstInteger, gatewayBaseURL, generated, randomInteger } from "hone-rl";
import { calculate } from "./agent.ts";

const products = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({
    left: randomInteger(random, 10, 99),
    right: randomInteger(random, 10, 99),
  }));

// Created once: the policy answers its calls, which belong to the rollout that makes them.
const policy = createOpenAICompatible({ name: "hone", baseURL: gatewayBaseURL() })("policy");

export default defineExperiment({
  train: products("products", 4096),
  validation: products("products-validation", 32),
  workflow: async ({ row: { left, right } }) =>
    firstInteger(await calculate(policy, `What is ${left} times ${right}?`), left * right),
  config: {
    rllm: {
      trainer: { experiment_name: "ai-sdk-agent", total_batches: 30, test_freq: 10, save_freq: 10 },
    },
    // The default model's own template does not support tools.
    rollout_engine: { renderer_name: "hermes" },
    training: { learning_rate: 1e-4 },
    data: { train_batch_size: 4, val_batch_size: 32, max_prompt_length: 1024, max_response_length: 64 },
  },
});
