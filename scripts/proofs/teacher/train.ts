/**
 * A teacher against rewards alone: the policy answers two questions of examples/larger-number, and only both correct answers earn
 * the reward.
 */
import { type ChatMessage, defineExperiment, firstInteger, generated, randomInteger } from "hone-rl";

interface Question {
  left: number;
  right: number;
}

const tasks = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({
    questions: [1, 2].map((): Question => {
      const left = randomInteger(random, 10, 99);
      const right = randomInteger(random, 10, 99);
      return { left, right: left === right ? right + 1 : right };
    }),
  }));

const asked = (left: number, right: number) => `Which number is larger, ${left} or ${right}?`;
const shown: ChatMessage[] = [
  { role: "user", content: asked(13, 75) },
  { role: "assistant", content: "75" },
  { role: "user", content: asked(82, 91) },
  { role: "assistant", content: "91" },
];

export default defineExperiment<{ questions: Question[] }>({
  train: tasks("two-questions", 4096),
  validation: tasks("two-questions-validation", 64),
  async workflow({ row }, { model }) {
    let correct = 0;
    for (const { left, right } of row.questions) {
      const reply = await model.chat([...shown, { role: "user", content: asked(left, right) }]);
      correct += Number(firstInteger(reply.text, Math.max(left, right)).reward === 1);
    }
    return Number(correct === row.questions.length);
  },
  config: {
    rllm: {
      // The second call has the shown answers before it, which may equal the first reply.
      filter_token_mismatch: false,
      rollout: { n: 4 },
      trainer: { experiment_name: "two-questions", total_batches: 24, test_freq: 8, save_freq: 8 },
    },
    model: { name: "smollm2-135m-instruct", lora_rank: 32 },
    training: { learning_rate: 1e-3 },
    data: { train_batch_size: 4, val_batch_size: 64, max_prompt_length: 128, max_response_length: 8 },
  },
});
