/** The first example: a 135M model learns to name the larger of two numbers. Minutes on two cores. */
import { defineExperiment, firstInteger, generated, singleTurn } from "hone";

interface Row {
  left: number;
  right: number;
}

const numbers = (name: string, size: number) =>
  generated<Row>(name, size, (_index, random) => {
    const left = 10 + Math.floor(random() * 90);
    const right = 10 + Math.floor(random() * 90);
    return { left, right: left === right ? right + 1 : right };
  });

export default defineExperiment<Row>({
  train: numbers("larger-number", 4096),
  validation: numbers("larger-number-validation", 64),
  workflow: singleTurn<Row>({
    prompt: (row) => `Which number is larger, ${row.left} or ${row.right}?`,
    reward: (row, reply) => firstInteger(reply.text, Math.max(row.left, row.right)),
  }),
  config: {
    rllm: {
      rollout: { n: 8 },
      trainer: { experiment_name: "larger-number", total_batches: 14, test_freq: 0, save_freq: 5 },
    },
    training: { learning_rate: 1e-3, lr_schedule: "linear" },
    sampling: { val: { temperature: 0 } },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 128, max_response_length: 12 },
  },
  next: "hone train examples/sort-numbers/train.ts",
});
