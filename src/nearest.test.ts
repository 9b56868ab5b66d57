import { expect, test } from "vitest";
import { editDistance, nearest } from "./nearest.ts";

test.each([
  ["", "", 0],
  ["abc", "", 3],
  ["kitten", "sitting", 3],
  ["seed", "seed", 0],
])("editDistance(%j, %j) is %d either way", (a, b, distance) => {
  expect(editDistance(a, b)).toBe(distance);
  expect(editDistance(b, a)).toBe(distance);
});

test.each([
  ["qestion", ["answer", "question"], ["question"]],
  ["maxLength", ["min_length", "max_length"], ["max_length", "min_length"]],
  ["Question", ["question", "answer"], ["question"]],
  ["epochs", ["ppo_epochs", "total_epochs", "seed"], ["ppo_epochs", "total_epochs"]],
  ["zzz", ["question", "answer"], []],
  ["a".repeat(100_000), ["question"], []],
])("nearest to %.20s", (name, candidates, expected) => {
  expect(nearest(name, candidates)).toEqual(expected);
});
