/** A model that reads pictures learns to name the color and the shape in them. It is made and warmed up by the first run. */
import { defineExperiment, singleTurn } from "hone-rl";
import { caption, pictureModel, prompt } from "./model.ts";
import { pictures } from "./pictures.ts";

export default defineExperiment({
  train: pictures("pictures", 4096),
  validation: pictures("pictures-validation", 64),
  workflow: singleTurn({
    prompt,
    reward: (row, reply) => Number(reply.text.trim() === caption(row)),
  }),
  config: {
    rllm: {
      rollout: { n: 4 },
      trainer: { experiment_name: "pictures", total_batches: 60, test_freq: 20, save_freq: 20 },
    },
    model: { name: await pictureModel(), train_vision: true },
    // At a constant rate the replies become all alike after 50 steps, and the reward falls.
    training: { learning_rate: 1e-3, lr_schedule: "linear" },
    data: { train_batch_size: 64, val_batch_size: 64, max_prompt_length: 64, max_response_length: 6 },
  },
});
