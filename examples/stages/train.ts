/**
 * Examples, then rewards: a model that never earns a reward learns the answer's form from 48 rows, then the task from rewards. If TEACHER
 * names a model that can do it, a stage between learns from this model.
 */
import { defineExperiment, fromRows, generated, randomInteger, sft, singleTurn, trainStages } from "hone-rl";

const numbers = (name: string, size: number) =>
  generated(name, size, (_index, random) => {
    const left = randomInteger(random, 10, 99);
    const right = randomInteger(random, 10, 99);
    return { left, right: left === right ? right + 1 : right };
  });

type Row = { left: number; right: number };
const question = ({ left, right }: Row) => `Which number is larger, ${left} or ${right}?`;
/** The model would have to guess this form, so without examples no reply gets a reward. */
const answer = ({ left, right }: Row) => `<answer>${Math.max(left, right)}</answer>`;

const model = { name: "smollm2-135m-instruct", lora_rank: 32 };

const examples = numbers("stages-examples", 48);
const rows = Array.from({ length: examples.size }, (_, index) => {
  const { row } = examples.task(index);
  return {
    messages: [
      { role: "user", content: question(row) },
      { role: "assistant", content: answer(row) },
    ],
  };
});

export const imitation = sft({
  data: fromRows("stages-rows", rows),
  config: {
    model,
    rllm: { trainer: { experiment_name: "stages-sft", total_epochs: 4, save_freq: 0 } },
    training: { learning_rate: 5e-4 },
    data: { train_batch_size: 16 },
  },
});

const task = {
  train: numbers("stages", 4096),
  validation: numbers("stages-validation", 32),
  workflow: singleTurn({
    prompt: question,
    reward: (row, reply) => Number(reply.text.trim() === answer(row)),
  }),
};
const data = { train_batch_size: 8, val_batch_size: 32, max_prompt_length: 128, max_response_length: 12 };

const taughtBy = (teacher: string) =>
  defineExperiment({
    ...task,
    config: {
      model,
      distillation: {
        enabled: true,
        teacher_models: { teacher: { model_path: teacher } },
        distillation_loss: { loss_mode: "forward_kl_topk", topk: 20 },
      },
      rllm: {
        rollout: { n: 2 },
        trainer: { experiment_name: "stages-teacher", total_batches: 6, test_freq: 0, save_freq: 0 },
      },
      training: { learning_rate: 3e-4 },
      data,
    },
  });

export const rewards = defineExperiment({
  ...task,
  config: {
    model,
    rllm: {
      rollout: { n: 6 },
      trainer: { experiment_name: "stages-rl", total_batches: 24, test_freq: 0, save_freq: 8 },
    },
    training: { learning_rate: 3e-4 },
    data,
  },
});

const { TEACHER } = process.env;
await trainStages("runs/stages", [
  { name: "sft", experiment: imitation },
  ...(TEACHER === undefined ? [] : [{ name: "teacher", experiment: taughtBy(TEACHER) }]),
  { name: "rl", experiment: rewards },
]);
