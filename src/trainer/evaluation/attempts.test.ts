import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Attempt, compareAttempts, passAtK, signTest, studentQuantile, summarizeAttempts } from "./attempts.ts";

const attempt = (task: string, reward: number | null): Attempt => ({ task, reward, solved: reward === 1, tokens: 10 });
const attempts = (rewards: Record<string, readonly (number | null)[]>) =>
  Object.entries(rewards).flatMap(([task, all]) => all.map((reward) => attempt(task, reward)));

describe("the summary of an evaluation", () => {
  it("has the standard error of a mean where each task is tried once", () => {
    const { reward, ...rest } = summarizeAttempts(attempts({ a: [1], b: [0], c: [1], d: [1] }));
    expect(reward!.mean).toBe(0.75);
    expect(reward!.standardError).toBeCloseTo(0.25, 12); // sd 0.5 of n - 1, over the root of 4
    const reach = 3.182446 * 0.25; // Student's t with 3 degrees of freedom
    expect(reward!.interval).toEqual([expect.closeTo(0.75 - reach, 2), expect.closeTo(0.75 + reach, 2)]);
    expect(rest).toEqual({ tasks: 4, rollouts: 4, unknown: 0, passAt: { 1: 0.75 }, meanTokens: 10 });
  });

  it("does not become more certain by repeating the same tasks", () => {
    const once = summarizeAttempts(attempts({ a: [1], b: [0], c: [1], d: [1] })).reward!;
    const often = summarizeAttempts(attempts({ a: [1, 1, 1], b: [0, 0, 0], c: [1, 1, 1], d: [1, 1, 1] })).reward!;
    expect(often.mean).toBe(once.mean);
    expect(often.standardError).toBeCloseTo(once.standardError!, 12);
  });

  it("leaves unknown outcomes out, and counts them", () => {
    expect(summarizeAttempts(attempts({ a: [1, null], b: [null, 0] }))).toMatchObject({
      ...{ tasks: 2, rollouts: 4, unknown: 2, reward: { mean: 0.5 }, passAt: { 1: 0.5 } },
    });
    expect(summarizeAttempts(attempts({ a: [null] }))).toMatchObject({ unknown: 1, reward: null, passAt: {} });
    expect(summarizeAttempts(attempts({ a: [1] })).reward).toEqual({ mean: 1, standardError: null, interval: null });
  });

  it("estimates pass@k from all rollouts", () => {
    const { passAt } = summarizeAttempts(attempts({ a: [1, 0, 0, 0], b: [0, 0, 0, 0] }));
    expect(passAt).toEqual({ 1: 0.125, 2: 0.25, 4: 0.5 });
    expect([passAtK(4, 1, 2), passAtK(10, 3, 1), passAtK(5, 0, 5), passAtK(5, 1, 5)]).toEqual([
      0.5,
      expect.closeTo(0.3, 12),
      0,
      1,
    ]);
  });

  it("compares two models task by task", () => {
    const first = attempts({ a: [0], b: [0], c: [1], d: [null], e: [0.5] });
    const second = attempts({ a: [1], b: [1], c: [0], d: [1], e: [0.5] });
    const { difference, ...rest } = compareAttempts(first, second)!;
    expect(rest).toEqual({ tasks: 4, wins: 2, losses: 1, ties: 1, signTest: 1 });
    expect(difference.mean).toBe(0.25);
    expect(difference.standardError).toBeCloseTo(Math.sqrt(2.75 / 3 / 4), 12);
    expect(compareAttempts(first, attempts({ z: [1] }))).toBeNull();
  });

  it.each([
    [9, 1, 0.021484375],
    [5, 5, 1],
    [0, 0, 1],
    [0, 6, 0.03125],
    [2000, 1800, 0.00124],
  ])("%i wins and %i losses have the exact p-value %f", (wins, losses, p) => {
    expect(signTest(wins, losses)).toBeCloseTo(p, 4);
  });

  it.each([
    [1, 12.7062],
    [2, 4.302653],
    [3, 3.182446],
    [5, 2.570582],
    [10, 2.228139],
    [30, 2.042272],
    [1000, 1.962339],
  ])("widens the interval of few tasks: t of %i degrees of freedom is %f", (degrees, quantile) => {
    expect(Math.abs(studentQuantile(degrees) / quantile - 1)).toBeLessThan(2e-3);
  });

  it("swaps signs with the models", () => {
    const rewards = fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 2, maxLength: 12 });
    fc.assert(
      fc.property(rewards, rewards, (left, right) => {
        const of = (all: number[]) => all.map((reward, task) => attempt(String(task), reward));
        const [there, back] = [compareAttempts(of(left), of(right))!, compareAttempts(of(right), of(left))!];
        expect(there.difference.mean).toBeCloseTo(-back.difference.mean, 12);
        expect([there.wins, there.losses, there.signTest]).toEqual([back.losses, back.wins, back.signTest]);
      }),
      { seed: 1 },
    );
  });
});
