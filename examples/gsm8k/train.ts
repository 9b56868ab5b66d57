/**
 * Grade-school mathematics. Rows come from the hub (`openai/gsm8k`) or, with GSM8K_TRAIN / GSM8K_TEST, from jsonl or
 * parquet files with the columns `question` and `answer`.
 */
import { columns, defineExperiment, gsm8kAnswer, openDataset, singleTurn } from "hone-rl";
import { z } from "zod";

const shape = { question: z.string(), answer: z.string() };

const open = async (split: "train" | "test", file: string | undefined) =>
  columns(await openDataset(file ?? `hub:openai/gsm8k?config=main&split=${split}`), shape);

export default defineExperiment({
  train: await open("train", process.env.GSM8K_TRAIN),
  validation: await open("test", process.env.GSM8K_TEST),
  workflow: singleTurn({
    system: "Reason step by step, then give the final number after ####.",
    prompt: (row) => row.question,
    reward: (row, reply) => gsm8kAnswer(reply.text, row.answer),
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "gsm8k", total_epochs: 1, test_freq: 50, save_freq: 50 },
    },
    training: { learning_rate: 1e-5 },
    data: { train_batch_size: 16, val_batch_size: 64, max_prompt_length: 512, max_response_length: 256 },
  },
});
