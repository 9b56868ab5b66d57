/** Rewards come from a server. REWARD_URL names one that runs; without it the one in server.ts is started. */
import { defineExperiment, generated, remoteReward, singleTurn } from "hone";
import { startServer } from "./server.ts";

interface Row {
  words: number;
}

const lengths = (name: string, size: number) =>
  generated<Row>(name, size, (_index, random) => ({ words: 3 + Math.floor(random() * 8) }));

const own = process.env.REWARD_URL === undefined ? await startServer() : undefined;
const url = process.env.REWARD_URL ?? own!.url;

export default defineExperiment<Row>({
  train: lengths("lengths", 4096),
  validation: lengths("lengths-validation", 64),
  workflow: singleTurn<Row>({
    prompt: (row) => `Describe the sea in exactly ${row.words} words.`,
    reward: remoteReward<Row>({ url, reference: (row) => String(row.words) }),
  }),
  close: () => void own?.server.close(),
  config: {
    rllm: {
      rollout: { n: 8 },
      trainer: { experiment_name: "reward-server", total_batches: 30, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 8, val_batch_size: 64, max_prompt_length: 128, max_response_length: 24 },
  },
});
