/** Learning-rate schedules. */

export type Schedule = "constant" | "linear" | "cosine";

export interface ScheduleOptions {
  schedule: Schedule;
  /** Number of steps of the linear warm-up. */
  warmupSteps: number;
  total: number;
  /** Rate at the end of the decay, as a share of the peak. */
  minRatio?: number;
}

/** The factor after the warm-up; `done` is the share of the decay that has passed, 0..1. */
const decays: Record<Schedule, (done: number) => number> = {
  constant: () => 1,
  linear: (done) => 1 - done,
  cosine: (done) => (1 + Math.cos(Math.PI * done)) / 2,
};

/**
 * The factor of the peak rate at a step: `step / warmupSteps` during the warm-up, then a decay from 1 to `minRatio` over
 * the remaining steps. It does not stop at `total`; see `learningRate`.
 */
export function scheduleFactor(step: number, { schedule, warmupSteps, total, minRatio = 0 }: ScheduleOptions): number {
  if (step < warmupSteps) return step / warmupSteps;
  const done = (step - warmupSteps) / Math.max(total - warmupSteps, 1);
  return minRatio + (1 - minRatio) * decays[schedule](done);
}

export interface LearningRateOptions {
  schedule: Schedule;
  /** Number of warm-up steps; 0 or less uses `warmupRatio`. */
  warmupSteps?: number;
  /** Share of all steps that are warm-up steps, rounded down. */
  warmupRatio: number;
  /** Peak rate. */
  base: number;
  minRatio?: number;
}

/**
 * The learning rate of one training step, always positive. A decay to 0 would waste the last step, so the last and all
 * later steps use the rate of half a step before the end.
 *
 * @param step 1..total
 */
export function learningRate(step: number, total: number, options: LearningRateOptions): number {
  const { schedule, warmupSteps: steps = 0, warmupRatio, base, minRatio = 0 } = options;
  const warmupSteps = steps > 0 ? steps : Math.floor(total * warmupRatio);
  const last = Math.max(total - 0.5, warmupSteps);
  return base * scheduleFactor(Math.min(step, last), { schedule, warmupSteps, total, minRatio });
}
