import { expect, test } from "vitest";
import { nearest } from "./nearest.ts";

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
