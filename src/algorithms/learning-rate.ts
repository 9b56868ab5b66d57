/** Learning-rate schedules. */

export type Schedule = "constant" | "linear" | "cosine";

export interface ScheduleOptions {
  schedule: Schedule;
  /** Steps that rise by equal parts to the peak. */
  warmupSteps: number;
  total: number;
  /** What the decay ends at, as a share of the peak. */
  minRatio?: number;
}

/** What follows the warm-up, as a factor over the part `done` (0..1) of it. */
const decays: Record<Schedule, (done: number) => number> = {
  constant: () => 1,
  linear: (done) => 1 - done,
  cosine: (done) => (1 + Math.cos(Math.PI * done)) / 2,
};

/**
 * The factor of the peak rate at a point of the schedule: `step / warmupSteps` while warming up, then the decay over
 * the steps that remain, from 1 to `minRatio`. Beyond `total` the formulas just go on; see `learningRate`.
 */
export function scheduleFactor(step: number, { schedule, warmupSteps, total, minRatio = 0 }: ScheduleOptions): number {
  if (step < warmupSteps) return step / warmupSteps;
  const done = (step - warmupSteps) / Math.max(total - warmupSteps, 1);
  return minRatio + (1 - minRatio) * decays[schedule](done);
}

export interface LearningRateOptions {
  schedule: Schedule;
  /** Steps that warm up; 0 or less goes by `warmupRatio`. */
  warmupSteps?: number;
  /** Share of all steps that warm up, rounded down to whole steps. */
  warmupRatio: number;
  /** Peak rate. */
  base: number;
  minRatio?: number;
}

/**
 * The learning rate of one training step; positive on every step. Both decays would reach 0 at the last step and waste
 * it: it, and any step beyond, takes the rate half a step short of the end.
 *
 * @param step 1..total
 */
export function learningRate(step: number, total: number, options: LearningRateOptions): number {
  const { schedule, warmupSteps: steps = 0, warmupRatio, base, minRatio = 0 } = options;
  const warmupSteps = steps > 0 ? steps : Math.floor(total * warmupRatio);
  const last = Math.max(total - 0.5, warmupSteps);
  return base * scheduleFactor(Math.min(step, last), { schedule, warmupSteps, total, minRatio });
}
