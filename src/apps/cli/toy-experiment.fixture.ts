/** For end-to-end tests through `hone train`: a tiny random model learns to answer with lowercase letters. */
import { defineExperiment, generated, singleTurn } from "hone-rl";

const rows = (name: string, size: number) => generated(name, size, (index) => ({ index }));
const share = (text: string) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8;

export default defineExperiment<{ index: number }>({
  train: rows("toy", 256),
  validation: rows("toy-validation", 4),
  workflow: singleTurn({ prompt: ({ index }) => `say ${index}`, reward: (_row, reply) => share(reply.text) }),
  config: {
    rllm: {
      rollout: { n: 4 },
      trainer: { experiment_name: "toy", total_batches: 8, save_freq: 2, test_freq: 4 },
    },
    model: { lora_rank: 4, train_unembed: true },
    training: { learning_rate: 0.05 },
    data: { train_batch_size: 4, max_response_length: 8 },
    local: { dtype: "float32", device: "cpu", threads: 1 },
  },
});
