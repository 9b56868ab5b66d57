/** The first example: a 135M model learns to name the larger of two numbers. It takes minutes on two cores. */
import { type ChatMessage, defineExperiment, firstInteger, generated, randomInteger, singleTurn } from "hone-rl";

const numbers = (name: string, size: number) =>
  generated(name, size, (_index, random) => {
    const left = randomInteger(random, 10, 99);
    const right = randomInteger(random, 10, 99);
    return { left, right: left === right ? right + 1 : right };
  });

const question = (left: number, right: number) => `Which number is larger, ${left} or ${right}?`;

/** Two answered questions show the answer format, so that some answers are correct from the start. */
const shown: ChatMessage[] = [
  { role: "user", content: question(13, 75) },
  { role: "assistant", content: "75" },
  { role: "user", content: question(82, 91) },
  { role: "assistant", content: "91" },
];

export default defineExperiment({
  train: numbers("larger-number", 4096),
  validation: numbers("larger-number-validation", 64),
  workflow: singleTurn({
    prompt: (row) => [...shown, { role: "user", content: question(row.left, row.right) }],
    reward: (row, reply) => firstInteger(reply.text, Math.max(row.left, row.right)),
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "larger-number", total_batches: 16, test_freq: 0, save_freq: 5 },
    },
    model: { name: "smollm2-135m-instruct", lora_rank: 32 },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 128, max_response_length: 8 },
  },
  next: "npx hone-rl train examples/sort-numbers/train.ts",
});
