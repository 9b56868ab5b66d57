/** A game of several turns: cross a frozen lake without falling into a hole. */
import { type ChatMessage, chatAgent, defineExperiment, gridWorld, gridWorlds, multiTurn } from "hone-rl";

const lake = { size: 3, holes: 0.2, moves: 4, compass: true };

/** Two answered turns show the answer format. */
const shown: ChatMessage[] = [
  { role: "user", content: "The goal lies left." },
  { role: "assistant", content: "left" },
  { role: "user", content: "The goal lies right and down." },
  { role: "assistant", content: "down" },
];

export default defineExperiment({
  train: gridWorlds("lake", 4096, lake),
  validation: gridWorlds("lake-validation", 32, lake),
  workflow: multiTurn({
    environment: (task) => gridWorld(task.row),
    agent: () => chatAgent({ shown }),
    params: { maxTokens: 4 },
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "grid-world", total_batches: 48, test_freq: 16, save_freq: 16 },
    },
    training: { learning_rate: 2e-4 },
    data: { train_batch_size: 4, val_batch_size: 32, max_prompt_length: 512, max_response_length: 64 },
  },
});
