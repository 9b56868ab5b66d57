/** An agent with the tools of an MCP server. It learns to call the calculator instead of guessing. */
import { fileURLToPath } from "node:url";
import { defineExperiment, firstInteger, generated, openMcpTools, randomInteger, useTools } from "hone-rl";

const products = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({
    left: randomInteger(random, 10, 99),
    right: randomInteger(random, 10, 99),
  }));

/** All rollouts share a server, since its tools are stateless. */
const calculator = await openMcpTools({
  command: process.execPath,
  args: ["--import", "tsx", fileURLToPath(new URL("./server.ts", import.meta.url))],
});

export default defineExperiment({
  train: products("products", 4096),
  validation: products("products-validation", 32),
  workflow: useTools({
    prompt: (row) => `What is ${row.left} times ${row.right}?`,
    tools: calculator.tools,
    reward: (row, reply) => firstInteger(reply.content, row.left * row.right),
    maxSteps: 3,
  }),
  close: () => calculator.close?.(),
  config: {
    rllm: {
      trainer: { experiment_name: "mcp-tools", total_batches: 30, test_freq: 10, save_freq: 10 },
    },
    // The default model's own template does not support tools.
    rollout_engine: { renderer_name: "hermes" },
    training: { learning_rate: 1e-4 },
    data: { train_batch_size: 4, val_batch_size: 32, max_prompt_length: 1024, max_response_length: 64 },
  },
});
