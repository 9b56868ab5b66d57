import { expect, test } from "vitest";
import { learningRate, type Schedule, scheduleFactor } from "./learning-rate.ts";
import { differences, readVectors } from "./vectors/read-vectors.fixture.ts";

interface Params {
  lr_schedule: Schedule;
  total_steps: number;
  warmup_steps?: number;
  warmup_steps_ratio?: number;
}

test.each(readVectors<{ steps: number[] }, Params, { multiplier: number[] }>("schedules", ""))(
  "$name, but for the last step",
  ({ inputs, params, outputs, tol }) => {
    const { lr_schedule: schedule, total_steps: total, warmup_steps = -1, warmup_steps_ratio = 0 } = params;
    const warmup = warmup_steps > 0 ? warmup_steps : Math.floor(total * warmup_steps_ratio);
    const before = inputs.steps.filter((step) => step < total);
    const got = before.map((step) => scheduleFactor(schedule, step, warmup, total));
    expect(differences(got, outputs.multiplier.slice(0, before.length), tol)).toEqual([]);
  },
);

test.each<Schedule>(["constant", "linear", "cosine"])(
  "%s is positive on every step and never rises after warm-up",
  (schedule) => {
    for (const total of [1, 2, 3, 17, 100]) {
      for (const warmupRatio of [0, 0.1, 0.5, 1]) {
        const rates = Array.from({ length: total + 3 }, (_, index) =>
          learningRate(index + 1, total, { schedule, warmupRatio, base: 0.5 }),
        );
        expect(Math.min(...rates)).toBeGreaterThan(0);
        expect(Math.max(...rates)).toBeLessThanOrEqual(0.5);
        const decay = rates.slice(Math.floor(total * warmupRatio));
        expect(decay).toEqual([...decay].sort((a, b) => b - a));
      }
    }
  },
);

test("warm-up rises by equal parts to the peak", () => {
  const at = (step: number) => learningRate(step, 10, { schedule: "constant", warmupRatio: 0.4, base: 1 });
  expect([1, 2, 3, 4, 5].map(at)).toEqual([0.25, 0.5, 0.75, 1, 1]);
});
