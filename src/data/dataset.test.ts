import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { configSchema } from "../config/schema.ts";
import { stepsPerEpoch, taskIndices, totalSteps } from "./dataset.ts";

const options = fc
  .record({
    size: fc.integer({ min: 1, max: 60 }),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
    seed: fc.nat(),
    shuffle: fc.boolean(),
  })
  .map(({ size, share, seed, shuffle }) => ({ size, seed, shuffle, batchSize: Math.max(1, Math.floor(size * share)) }));

describe("taskIndices", () => {
  test("an epoch visits each task at most once and drops less than a batch", () => {
    fc.assert(
      fc.property(options, fc.nat(5), (given, epoch) => {
        const perEpoch = stepsPerEpoch(given.size, given.batchSize);
        const seen = Array.from({ length: perEpoch }, (_, step) => taskIndices(given, epoch * perEpoch + step));
        expect(new Set(seen.map((taken) => taken.epoch))).toEqual(new Set([epoch]));
        for (const { indices } of seen) expect(indices).toHaveLength(given.batchSize);
        const visited = seen.flatMap(({ indices }) => indices);
        expect(new Set(visited).size).toBe(visited.length);
        expect(Math.min(...visited)).toBeGreaterThanOrEqual(0);
        expect(Math.max(...visited)).toBeLessThan(given.size);
        expect(given.size - visited.length).toBeLessThan(given.batchSize);
      }),
    );
  });

  test("depends on the step alone, not on earlier calls", () => {
    fc.assert(
      fc.property(options, fc.array(fc.nat(40), { minLength: 1 }), (given, steps) => {
        const forward = steps.map((step) => taskIndices(given, step));
        const backward = [...steps].reverse().map((step) => taskIndices({ ...given }, step));
        expect(backward.reverse()).toEqual(forward);
      }),
    );
  });

  test("the order differs by seed and by epoch, and is the dataset's own without shuffling", () => {
    const given = { size: 50, batchSize: 50, seed: 1, shuffle: true };
    const [first, second] = [taskIndices(given, 0).indices, taskIndices(given, 1).indices];
    expect(second).not.toEqual(first);
    expect(taskIndices({ ...given, seed: 2 }, 0).indices).not.toEqual(first);
    expect([...first].sort((a, b) => a - b)).toEqual(Array.from({ length: 50 }, (_, index) => index));
    const plain = { size: 5, batchSize: 2, seed: 1, shuffle: false };
    expect([0, 1, 2].map((step) => taskIndices(plain, step))).toEqual([
      { epoch: 0, indices: [0, 1] },
      { epoch: 0, indices: [2, 3] },
      { epoch: 1, indices: [0, 1] },
    ]);
  });

  test("is the same on every machine and in every version: runs resume across both", () => {
    expect(taskIndices({ size: 10, batchSize: 5, seed: 7, shuffle: true }, 3)).toMatchInlineSnapshot(`
      {
        "epoch": 1,
        "indices": [
          4,
          3,
          8,
          7,
          5,
        ],
      }
    `);
  });
});

test.each([
  [10, 3, 3],
  [9, 3, 3],
  [3, 3, 1],
])("%d tasks in batches of %d make %d steps", (size, batchSize, steps) => {
  expect(stepsPerEpoch(size, batchSize)).toBe(steps);
});

test("a batch larger than the dataset is an error that names both sizes", () => {
  expect(() => stepsPerEpoch(40, 64)).toThrow(UserError);
  expect(() => stepsPerEpoch(40, 64)).toThrow("data.train_batch_size is 64, but the dataset has only 40 tasks");
  expect(() => taskIndices({ size: 0, batchSize: 1, seed: 0, shuffle: true }, 0)).toThrow("only 0 tasks");
});

test.each([
  [-1, 3, 30],
  [0, 3, 30],
  [7, 3, 7],
  [700, 3, 700],
])("total_batches=%d and total_epochs=%d make %d steps", (total_batches, total_epochs, steps) => {
  const config = configSchema.parse({
    rllm: { trainer: { total_batches, total_epochs } },
  });
  expect(totalSteps(config, 10)).toBe(steps);
});
