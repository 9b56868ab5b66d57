/** Learning-rate schedules. */

export type Schedule = "constant" | "linear" | "cosine";

/** What follows the warm-up, as a factor over the part `done` (0..1) of it. */
const decays: Record<Schedule, (done: number) => number> = {
  constant: () => 1,
  linear: (done) => 1 - done,
  cosine: (done) => (1 + Math.cos(Math.PI * done)) / 2,
};

/**
 * The factor of the peak rate: `step / warmupSteps` while warming up, then the decay over the steps that remain.
 * Both decays would reach 0 at the last step and waste it: it, and any step beyond, stops half a step short.
 */
export function scheduleFactor(schedule: Schedule, step: number, warmupSteps: number, total: number): number {
  if (step < warmupSteps) return step / warmupSteps;
  const decaySteps = Math.max(total - warmupSteps, 1);
  return decays[schedule](Math.min(step - warmupSteps, decaySteps - 0.5) / decaySteps);
}

/**
 * The learning rate of one training step; positive on every step.
 *
 * @param step 1..total
 * @param options `base`: peak rate; `warmupRatio`: share of all steps that warm up, rounded down to whole steps
 */
export function learningRate(
  step: number,
  total: number,
  { schedule, warmupRatio, base }: { schedule: Schedule; warmupRatio: number; base: number },
): number {
  return base * scheduleFactor(schedule, step, Math.floor(total * warmupRatio), total);
}
