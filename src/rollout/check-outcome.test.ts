import { expect, test } from "vitest";
import { checkOutcome } from "./check-outcome.ts";

test.each<[unknown, string]>([
  [Number.NaN, "returned NaN; a reward is a finite number, or null when it is not known"],
  [Number.POSITIVE_INFINITY, "returned Infinity"],
  [undefined, "returned undefined (a missing return?)"],
  [null, "returned null"],
  [true, "returned true"],
  ["1", 'returned "1"'],
  [[1], "returned [1]"],
  [{}, "without `reward`: {}"],
  [{ score: 1 }, 'without `reward`: {"score":1}'],
  [{ reward: undefined }, "returned reward undefined"],
  [{ reward: Number.NaN }, "returned reward NaN"],
  [{ reward: 1, correct: 1 }, "returned correct 1; it is a boolean"],
  [{ reward: 1, explanation: 2 }, "returned explanation 2; it is a string"],
  [{ reward: 1, metrics: { length: Number.NaN } }, "returned metrics.length NaN"],
  [{ reward: 1, metrics: 3 }, "returned metrics 3; it is an object"],
  [{ reward: 1, rewards: { judge: "x" } }, 'returned rewards.judge "x"'],
  [{ reward: 1, rewards: { jugde: 1 } }, 'the role "jugde", but the model was called as solver, judge only'],
])("refuses %j", (value, message) => {
  expect(() => checkOutcome(value, ["solver", "judge"])).toThrow(message);
});

test.each<[unknown, unknown]>([
  [0.5, { reward: 0.5 }],
  [{ reward: null }, { reward: null }],
  [
    { reward: 1, correct: true, explanation: "", metrics: {} },
    { reward: 1, correct: true, explanation: "", metrics: {} },
  ],
  [
    { reward: 1, rewards: { judge: null, absent: null } },
    { reward: 1, rewards: { judge: null, absent: null } },
  ],
])("accepts %j", (value, outcome) => {
  expect(checkOutcome(value, ["solver", "judge"])).toEqual(outcome);
});
