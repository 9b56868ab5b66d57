/** When what happens: a pure function of the configuration and the dataset's size. Steps count from 1. */
import type { Config } from "../config/schema.ts";

export interface Plan {
  totalSteps: number;
  stepsPerEpoch: number;
  /** Whether to validate after this step; the last step always does. */
  validateAfter(step: number): boolean;
  /** Whether to save after this step; the last step always does. */
  saveAfter(step: number): boolean;
  /** One line of arithmetic: what a step is made of. */
  arithmetic: string;
}

export function makePlan(config: Config, sizes: { stepsPerEpoch: number; totalSteps: number }): Plan {
  const { stepsPerEpoch, totalSteps } = sizes;
  const { test_freq, save_freq, freq_unit } = config.rllm.trainer;
  const unit = freq_unit === "epochs" ? stepsPerEpoch : 1;
  const due = (frequency: number) => (step: number) =>
    step === totalSteps || (frequency > 0 && step % (frequency * unit) === 0);
  const tasks = config.data.train_batch_size;
  const rollouts = config.rllm.rollout.n;
  const optimizerSteps = config.training.num_minibatches * config.training.ppo_epochs;
  return {
    totalSteps,
    stepsPerEpoch,
    validateAfter: due(test_freq),
    saveAfter: due(save_freq),
    arithmetic:
      `${tasks} tasks x ${rollouts} rollouts = ${tasks * rollouts} episodes -> ` +
      `${optimizerSteps} optimizer step${optimizerSteps === 1 ? "" : "s"} a step; ` +
      `${totalSteps} steps (${stepsPerEpoch} an epoch)`,
  };
}
