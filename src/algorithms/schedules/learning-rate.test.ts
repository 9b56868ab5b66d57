import { expect, test } from "vitest";
import { learningRate, type Schedule } from "./learning-rate.ts";

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

test("warm-up rises in equal steps to the peak", () => {
  const at = (step: number) => learningRate(step, 10, { schedule: "constant", warmupRatio: 0.4, base: 1 });
  expect([1, 2, 3, 4, 5].map(at)).toEqual([0.25, 0.5, 0.75, 1, 1]);
});

test("warmup_steps wins over warmup_steps_ratio, and the decay ends at the minimum", () => {
  const rates = (minRatio: number) =>
    [1, 2, 6, 10].map((step) =>
      learningRate(step, 10, { schedule: "linear", warmupSteps: 2, warmupRatio: 0.9, base: 1, minRatio }),
    );
  expect(rates(0)).toEqual([0.5, 1, 0.5, 0.0625]);
  expect(rates(0.5)).toEqual([0.5, 1, 0.75, 0.53125]);
});
