import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { defineExperiment, firstInteger, gatewayBaseURL, generated, randomInteger, type Workflow } from "hone-rl";
import { shop } from "./agent.ts";

export interface Row {
  item: string;
  count: number;
  answer: number;
}

const items = [
  ["pen", 2],
  ["book", 12],
  ["lamp", 30],
] as const;

const orders = (name: string, size: number) =>
  generated(name, size, (index, random): Row => {
    const [item, price] = items[index % items.length]!;
    const count = randomInteger(random, 1, 9);
    return { item, count, answer: price * count };
  });

/** The model that is trained, at an address that Hone answers. Each call is recorded for the rollout that makes it. */
const policy = createOpenAICompatible({ name: "hone", baseURL: gatewayBaseURL() })("policy");

export const workflow: Workflow<Row> = async ({ row: { item, count, answer } }) =>
  firstInteger(await shop(policy, `How much do ${count} of the item ${item} cost?`), answer);

export default defineExperiment({
  train: orders("train", 999),
  validation: orders("validation", 24),
  workflow,
  config: {
    rllm: { trainer: { experiment_name: "{{name}}", total_batches: 30, test_freq: 10 } },
    // The default model's own template does not support tools. Leave this out for a model that does.
    rollout_engine: { renderer_name: "hermes" },
    training: { learning_rate: 1e-4 },
    data: { train_batch_size: 4, val_batch_size: 24, max_prompt_length: 1024, max_response_length: 64 },
  },
});
