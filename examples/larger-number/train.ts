/** The first example: a 135M model learns to name the larger of two numbers. Minutes on two cores. */
import { type ChatMessage, defineExperiment, firstInteger, generated, singleTurn } from "hone";

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

const question = (left: number, right: number) => `Which number is larger, ${left} or ${right}?`;

/** Two answered questions show the form of an answer, so that the model has a chance to be right at first. */
const shown: ChatMessage[] = [
  { role: "user", content: question(13, 75) },
  { role: "assistant", content: "75" },
  { role: "user", content: question(82, 91) },
  { role: "assistant", content: "91" },
];

export default defineExperiment<Row>({
  train: numbers("larger-number", 4096),
  validation: numbers("larger-number-validation", 64),
  workflow: singleTurn<Row>({
    prompt: (row) => [...shown, { role: "user", content: question(row.left, row.right) }],
    reward: (row, reply) => firstInteger(reply.text, Math.max(row.left, row.right)),
  }),
  config: {
    rllm: {
      rollout: { n: 8 },
      trainer: { experiment_name: "larger-number", total_batches: 16, test_freq: 0, save_freq: 5 },
    },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 128, max_response_length: 8 },
  },
  next: "npx hone train examples/sort-numbers/train.ts",
});
