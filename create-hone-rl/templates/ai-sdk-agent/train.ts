import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { defineExperiment, firstInteger, fromRows, gatewayBaseURL, type Workflow } from "hone-rl";
import { prices, shop } from "./agent.ts";

export interface Row {
  item: string;
  answer: number;
}

const questions = (name: string) =>
  fromRows(
    name,
    Object.entries(prices).map(([item, answer]): Row => ({ item, answer })),
  );

/** The model that is trained, at an address that Hone answers. Each call is recorded for the rollout that makes it. */
const policy = createOpenAICompatible({ name: "hone", baseURL: gatewayBaseURL() })("policy");

export const workflow: Workflow<Row> = async ({ row: { item, answer } }) =>
  firstInteger(await shop(policy, `What does a ${item} cost?`), answer);

export default defineExperiment({
  train: questions("train"),
  validation: questions("validation"),
  workflow,
  config: {
    rllm: { trainer: { experiment_name: "{{name}}", total_batches: 30, test_freq: 10 }, rollout: { n: 4 } },
    // The default model's own template does not support tools. Leave this out for a model that does.
    rollout_engine: { renderer_name: "hermes" },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 4, max_prompt_length: 1024, max_response_length: 32 },
  },
});
