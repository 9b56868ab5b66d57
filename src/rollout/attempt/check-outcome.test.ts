import { expect, test } from "vitest";
import type { Step } from "../../trajectories/types.ts";
import { checkOutcome } from "./check-outcome.ts";

const recorded = [
  { name: "solver", instance: 1, steps: [{}, {}] as Step[], reward: null },
  { name: "judge", steps: [{ tokens: Int32Array.of(5, 6) }] as Step[], reward: null },
];

test.each<[unknown, string]>([
  [Number.NaN, "returned NaN; a reward must be a finite number, or { reward: null } if unknown"],
  [Number.POSITIVE_INFINITY, "returned Infinity"],
  [1e308, "returned 1e+308"],
  [{ reward: 1, advantages: { judge: [-1e39] } }, "returned advantages.judge -1e+39"],
  [undefined, "returned undefined; a reward must be"],
  [null, "returned null"],
  [true, "returned true"],
  ["1", 'returned "1"'],
  [[1], "returned [1]"],
  [{}, "without `reward`: {}"],
  [{ score: 1 }, 'without `reward`: {"score":1}'],
  [{ reward: undefined }, "returned reward undefined"],
  [{ reward: Number.NaN }, "returned reward NaN"],
  [{ reward: 1, correct: 1 }, "returned correct 1; it must be a boolean"],
  [{ reward: 1, explanation: 2 }, "returned explanation 2; it must be a string"],
  [{ reward: 1, metrics: { length: Number.NaN } }, "returned metrics.length NaN"],
  [{ reward: 1, metrics: 3 }, "returned metrics 3; it must be an object"],
  [{ reward: 1, rewards: { judge: "x" } }, 'returned rewards.judge "x"'],
  [{ reward: 1, rewards: { jugde: 1 } }, 'the role "jugde", but the model was called as solver#1, judge only'],
  [{ reward: 1, stepRewards: { judge: [1, 2] } }, 'returned 2 stepRewards for "judge", which called the model 1 times'],
  [{ reward: 1, stepRewards: { judge: [Number.NaN] } }, "returned stepRewards.judge NaN"],
  [{ reward: 1, stepRewards: { judge: 1 } }, "it must be a list"],
  [{ reward: 1, advantages: { judge: [1, 2] } }, 'returned 2 advantages for "judge", which called the model 1 times'],
  [
    { reward: 1, advantages: { judge: [Number.NaN] } },
    "returned advantages.judge NaN; it must be a finite number, or one for",
  ],
  [{ reward: 1, advantages: { judge: [[1, 2, 3, 4, 5, 6, 7]] } }, "one for each of the reply's"],
  [{ reward: 1, termination: "timeout" }, 'returned termination "timeout"; it must be one of env_done'],
])("refuses %j", (value, message) => {
  expect(() => checkOutcome(value, recorded)).toThrow(message);
});

test("refuses values that JSON cannot express by showing them", () => {
  const circular: Record<string, unknown> = {};
  circular.self = circular;
  expect(() => checkOutcome({ reward: circular }, recorded)).toThrow(/returned reward .*Circular/);
  expect(() => checkOutcome(10n, recorded)).toThrow("returned 10");
  expect(() => checkOutcome(Symbol("x"), recorded)).toThrow("returned Symbol(x)");
});

test.each<[unknown, unknown]>([
  [0.5, { reward: 0.5 }],
  [{ reward: null }, { reward: null }],
  [
    { reward: 1, correct: true, explanation: "", metrics: {} },
    { reward: 1, correct: true, explanation: "", metrics: {} },
  ],
  [
    { reward: 1, rewards: { judge: null, absent: null, solver: 1, "solver#1": 0 } },
    { reward: 1, rewards: { judge: null, absent: null, solver: 1, "solver#1": 0 } },
  ],
  [
    { reward: 1, stepRewards: { "solver#1": [0, null] }, termination: "max_turns_exceeded" },
    { reward: 1, stepRewards: { "solver#1": [0, null] }, termination: "max_turns_exceeded" },
  ],
])("accepts %j", (value, outcome) => {
  expect(checkOutcome(value, recorded)).toEqual(outcome);
});
