/** Rewards come from a server: the one at REWARD_URL, or the one in server.ts. */
import { defineExperiment, generated, randomInteger, remoteReward, singleTurn } from "hone-rl";
import { startServer } from "./server.ts";

const lengths = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({ words: randomInteger(random, 3, 10) }));

const own = process.env.REWARD_URL === undefined ? await startServer() : undefined;
const url = process.env.REWARD_URL ?? own!.url;

export default defineExperiment({
  train: lengths("lengths", 4096),
  validation: lengths("lengths-validation", 64),
  workflow: singleTurn({
    prompt: (row) => `Describe the sea in exactly ${row.words} words.`,
    reward: remoteReward({ url, reference: (row) => String(row.words) }),
  }),
  close: () => void own?.server.close(),
  config: {
    rllm: {
      trainer: { experiment_name: "reward-server", total_batches: 30, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 8, val_batch_size: 64, max_prompt_length: 128, max_response_length: 24 },
  },
});
