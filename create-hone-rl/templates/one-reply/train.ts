import { type ChatMessage, defineExperiment, firstInteger, generated, randomInteger, singleTurn } from "hone-rl";

export interface Row {
  left: number;
  right: number;
}

/** Replace it with your own rows: fromRows("my-tasks", rows), or await openDataset("train.jsonl"). */
const numbers = (name: string, size: number) =>
  generated(
    name,
    size,
    (_index, random): Row => ({ left: randomInteger(random, 10, 99), right: randomInteger(random, 10, 99) }),
  );

const question = ({ left, right }: Row) => `Which number is larger, ${left} or ${right}?`;

/** Answered questions show the format, so that some replies are right from the start. */
const shown: ChatMessage[] = [
  { role: "user", content: question({ left: 13, right: 75 }) },
  { role: "assistant", content: "75" },
  { role: "user", content: question({ left: 91, right: 82 }) },
  { role: "assistant", content: "91" },
];

export const workflow = singleTurn<Row>({
  prompt: (row) => [...shown, { role: "user", content: question(row) }],
  reward: ({ left, right }, reply) => firstInteger(reply.text, Math.max(left, right)),
});

export default defineExperiment({
  train: numbers("train", 4096),
  validation: numbers("validation", 32),
  workflow,
  config: {
    rllm: { trainer: { experiment_name: "{{name}}", total_batches: 40, test_freq: 10 } },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 16, val_batch_size: 32, max_prompt_length: 128, max_response_length: 8 },
  },
});
