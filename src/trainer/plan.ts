/** When what happens: a pure function of the configuration and the dataset's size. Steps count from 1. */
import type { Config } from "../config/schema.ts";
import { formatCount } from "../tracking/numbers.ts";
import { asyncOptions } from "./async-options.ts";
import { tasksPerDraw } from "./credit-options.ts";

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
  return {
    totalSteps,
    stepsPerEpoch,
    validateAfter: due(test_freq),
    saveAfter: due(save_freq),
    arithmetic: arithmetic(config, sizes),
  };
}

/**
 * What a training step is made of, in one line. An episode gives one sequence for each conversation that was only
 * continued; where agents rewrite history or several act, there are more.
 *
 * @example "16 tasks x 8 rollouts = 128 episodes -> 128 sequences or more -> 2 optimizer steps of about 64 a step; ..."
 */
function arithmetic(
  config: Config,
  { stepsPerEpoch, totalSteps }: { stepsPerEpoch: number; totalSteps: number },
): string {
  const { num_minibatches: parts, ppo_epochs: passes } = config.training;
  const tasks = tasksPerDraw(config);
  const { n } = config.rllm.rollout;
  const episodes = tasks * n;
  const optimizerSteps = parts * passes;
  const size = Math.ceil(episodes / parts);
  return (
    `${tasks} tasks x ${n} rollouts = ${episodes} episodes -> ${episodes} sequences or more -> ` +
    `${optimizerSteps} optimizer step${optimizerSteps === 1 ? "" : "s"}${parts === 1 ? "" : ` of about ${size}`} a step; ` +
    `${formatCount(totalSteps)} steps (${formatCount(stepsPerEpoch)} an epoch) = ${formatCount(totalSteps * episodes)} episodes${config.rllm.async_training.enable ? asyncArithmetic(config) : ""}`
  );
}

function asyncArithmetic(config: Config): string {
  const { quota, stepsPerSync, batch } = asyncOptions(config);
  return `; asynchronous: of up to ${quota} tasks dispatched from one update of the sampler's weights to the next, ${stepsPerSync * batch} are trained on`;
}
