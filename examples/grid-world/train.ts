/** A game of several turns: cross a frozen lake without falling into a hole. */
import { defineExperiment, type GridWorldRow, gridWorld, gridWorlds, multiTurn } from "hone";

const lake = { size: 3, holes: 0.2, moves: 4, compass: true };

export default defineExperiment<GridWorldRow>({
  train: gridWorlds("lake", 4096, lake),
  validation: gridWorlds("lake-validation", 32, lake),
  workflow: multiTurn<GridWorldRow>({
    environment: (task) => gridWorld(task.row),
    params: { maxTokens: 8 },
  }),
  config: {
    rllm: {
      rollout: { n: 8 },
      trainer: { experiment_name: "grid-world", total_batches: 40, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 4, val_batch_size: 32, max_prompt_length: 512, max_response_length: 64 },
  },
});
