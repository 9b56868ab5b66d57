/** Sorting three numbers, graded by position. Harder than larger-number, but partial credit gives a signal from the start. */
import { defineExperiment, generated, integersInOrder, randomInteger, singleTurn } from "hone-rl";

const triples = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({
    numbers: [1, 2, 3].map(() => randomInteger(random, 10, 99)),
  }));

export default defineExperiment({
  train: triples("sort-numbers", 4096),
  validation: triples("sort-numbers-validation", 64),
  workflow: singleTurn({
    prompt: (row) => `Sort these numbers from smallest to largest: ${row.numbers.join(", ")}`,
    reward: (row, reply) =>
      integersInOrder(
        reply.text,
        [...row.numbers].sort((left, right) => left - right),
      ),
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "sort-numbers", total_batches: 40, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 5e-4 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 128, max_response_length: 16 },
  },
});
