import fc from "fast-check";
import { expect, test } from "vitest";
import { asWhole, selectSequences, splitBatch } from "./batch.ts";
import { rewardGroup } from "./sample-episodes.fixture.ts";
import { toBatch } from "./to-batch.ts";
import type { TrainingBatch } from "./types.ts";

/** One sequence a member, each recognized by its advantage. */
function batchOf(sizes: readonly number[]): TrainingBatch {
  const groups = sizes.map((size, index) => rewardGroup(`${index}:solver`, Array<number>(size).fill(0)));
  let next = 0;
  const advantages = sizes.map((size) => Array.from({ length: size }, () => ++next));
  return toBatch(groups, advantages, { maxLength: 10 }).batch;
}

const sizes = fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 8 });

test("minibatches contain every sequence once, evenly, in whole groups if there are enough", () => {
  fc.assert(
    fc.property(sizes, fc.integer({ min: 1, max: 6 }), fc.nat(), (drawn, wanted, seed) => {
      const batch = batchOf(drawn);
      const parts = splitBatch(batch, wanted, seed);
      const numbers = parts.map(({ advantages }) => [...advantages]);
      expect(parts).toHaveLength(Math.min(wanted, batch.sequences.length));
      expect(numbers.flat().sort((a, b) => a - b)).toEqual([...batch.advantages]);
      for (const own of numbers) expect(own).toEqual([...own].sort((a, b) => a - b));
      expect(
        parts.every(({ sequences, totals }) => sequences.length > 0 && totals.sequences === sequences.length),
      ).toBe(true);
      const lengths = numbers.map(({ length }) => length);
      expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(Math.max(...drawn));
      if (drawn.length >= wanted) {
        const homes = parts.flatMap(({ groups }) => [...new Set(groups)]);
        expect(homes).toHaveLength(drawn.length);
      }
      expect(splitBatch(batch, wanted, seed)).toEqual(parts);
    }),
  );
});

test("the seed decides which groups go together; an empty batch has no minibatches", () => {
  const batch = batchOf([2, 2, 2, 2, 2, 2]);
  const splits = Array.from({ length: 20 }, (_, seed) =>
    JSON.stringify(splitBatch(batch, 2, seed).map(({ groups }) => [...groups])),
  );
  expect(new Set(splits).size).toBeGreaterThan(5);
  expect(splitBatch(batchOf([]), 3, 0)).toEqual([]);
});

test("a selection has every array and keeps the denominators of the whole batch", () => {
  const whole = batchOf([1, 2]);
  const batch = { ...whole, oldLogprobs: Float32Array.of(1, 2, 3), referenceLogprobs: Float32Array.of(4, 5, 6) };
  const part = selectSequences(batch, [2, 0]);
  expect([...part.advantages]).toEqual([3, 1]);
  expect([...part.oldLogprobs!]).toEqual([3, 1]);
  expect([...part.referenceLogprobs!]).toEqual([6, 4]);
  expect([...part.groups]).toEqual([1, 0]);
  expect(part.totals).toEqual({ tokens: 3, sequences: 3, longest: 1 });
  expect(asWhole(part).totals).toEqual({ tokens: 2, sequences: 2, longest: 1 });
  expect(selectSequences(whole, [0])).not.toHaveProperty("oldLogprobs");
});
