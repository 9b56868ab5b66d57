/** Two roles of one model learn together: the solver names the larger number, the judge says whether it is correct. */
import { type ChatMessage, defineExperiment, firstInteger, generated, randomInteger, solverJudge } from "hone-rl";

const pairs = (name: string, size: number) =>
  generated(name, size, (_index, random) => {
    const left = randomInteger(random, 10, 99);
    const right = randomInteger(random, 10, 99);
    return { left, right: left === right ? right + 1 : right };
  });

const question = (left: number, right: number) => `Which number is larger, ${left} or ${right}?`;

/** Two answered questions show the solver the answer format. */
const shown: ChatMessage[] = [
  { role: "user", content: question(13, 75) },
  { role: "assistant", content: "75" },
  { role: "user", content: question(82, 91) },
  { role: "assistant", content: "91" },
];

export default defineExperiment({
  train: pairs("pairs", 4096),
  validation: pairs("pairs-validation", 64),
  workflow: solverJudge({
    prompt: (row) => [...shown, { role: "user", content: question(row.left, row.right) }],
    reward: (row, reply) => firstInteger(reply.text, Math.max(row.left, row.right)),
    question: (row, solution) =>
      `${question(row.left, row.right)} Somebody says: ${solution.trim()}. Is that right? Answer yes or no.`,
    params: { solver: { maxTokens: 8 }, judge: { maxTokens: 4 } },
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "solver-judge", total_batches: 40, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 1e-4 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 256, max_response_length: 16 },
  },
});
