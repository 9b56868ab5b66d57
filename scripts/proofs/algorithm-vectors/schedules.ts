/** Learning-rate schedules, recorded as factors of the peak rate over step numbers. */
import { type Schedule, scheduleFactor } from "../../../src/trainer/optimizer-steps.ts";
import { type Families, family } from "./family.ts";

interface TinkerParams {
  lr_schedule: Schedule;
  total_steps: number;
  warmup_steps?: number;
  warmup_steps_ratio?: number;
}
interface VerlParams {
  num_warmup_steps: number;
  /** Absent for the constant schedule. */
  num_training_steps?: number;
  min_lr_ratio?: number | null;
}
interface LightrftParams {
  lr: number;
  lr_warmup_ratio: number;
  max_steps: number;
  min_lr: number;
}

const tinkerSchedule = family<{ steps: number[] }, TinkerParams>(({ inputs, params }) => {
  const { lr_schedule: schedule, total_steps: total, warmup_steps = -1, warmup_steps_ratio = 0 } = params;
  const warmupSteps = warmup_steps > 0 ? warmup_steps : Math.floor(total * warmup_steps_ratio);
  return { multiplier: inputs.steps.map((step) => scheduleFactor(step, { schedule, warmupSteps, total })) };
});

export const scheduleFamilies: Families = {
  "rllm/lr": tinkerSchedule,
  "tinker/lr": tinkerSchedule,
  "verl/lr": family<{ steps: number[] }, VerlParams>(({ inputs, params }) => {
    const { num_warmup_steps: warmupSteps, num_training_steps: total, min_lr_ratio } = params;
    const schedule: Schedule = total === undefined ? "constant" : "cosine";
    const options = { schedule, warmupSteps, total: total ?? 0, minRatio: min_lr_ratio ?? 0 };
    return { multiplier: inputs.steps.map((step) => scheduleFactor(step, options)) };
  }),
  "lightrft/lr": family<{ steps: number[] }, LightrftParams>(({ inputs, params }) => {
    const { lr, lr_warmup_ratio, max_steps: total, min_lr } = params;
    const warmupSteps = Math.ceil(total * lr_warmup_ratio);
    const options = { schedule: "cosine", warmupSteps, total, minRatio: min_lr / lr } as const;
    return { lr: inputs.steps.map((step) => lr * scheduleFactor(step, options)) };
  }),
};
