/** Sorting three numbers, graded by position: slower to learn than larger-number, with a signal throughout. */
import { defineExperiment, generated, integersInOrder, singleTurn } from "hone";

interface Row {
  numbers: number[];
}

const triples = (name: string, size: number) =>
  generated<Row>(name, size, (_index, random) => ({
    numbers: Array.from({ length: 3 }, () => 10 + Math.floor(random() * 90)),
  }));

export default defineExperiment<Row>({
  train: triples("sort-numbers", 4096),
  validation: triples("sort-numbers-validation", 64),
  workflow: singleTurn<Row>({
    prompt: (row) => `Sort these numbers from smallest to largest: ${row.numbers.join(", ")}`,
    reward: (row, reply) =>
      integersInOrder(
        reply.text,
        [...row.numbers].sort((left, right) => left - right),
      ),
  }),
  config: {
    rllm: {
      rollout: { n: 8 },
      trainer: { experiment_name: "sort-numbers", total_batches: 40, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 5e-4 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 128, max_response_length: 16 },
  },
});
