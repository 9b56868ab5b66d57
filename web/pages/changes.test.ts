import { expect, test } from "vitest";
import { changeSentence } from "./changes.ts";

const curves = (columns: Record<string, (number | "NaN" | null)[]>) => ({
  names: Object.keys(columns),
  steps: [1, 2, 3, 4, 5, 6],
  columns,
});

const reward = [0, 0.1, 0.2, 0.3, 0.4, 0.5];

test.each([
  ["a usual step", { "reward/mean": reward }, "the mean reward rose from 0.4 to 0.5; nothing else changed unusually."],
  [
    "one metric that jumped",
    { "reward/mean": reward, "actor/entropy": [2, 1.9, 2, 1.9, 2, 1] },
    "the mean reward rose from 0.4 to 0.5; the entropy fell unusually, from 2 to 1.",
  ],
  [
    "the largest jumps first",
    {
      "reward/mean": [0, 0.1, 0.2, 0.3, 0.4, 0.4],
      "actor/entropy": [2, 1.9, 2, 1.9, 2, 1],
      "actor/grad_norm": [1, 1.1, 1, 1.1, 1, 90],
    },
    "the mean reward stayed at 0.4; the gradient norm rose unusually, from 1 to 90 and the entropy fell from 2 to 1.",
  ],
  [
    "no small changes of what was constant",
    { "reward/mean": reward, "response_length/mean": [4, 4, 4, 4, 4, 3.9] },
    "the mean reward rose from 0.4 to 0.5; nothing else changed unusually.",
  ],
  ["a reward that is unknown", { "reward/mean": [0, 0, 0, 0, 0, null] }, "nothing changed unusually."],
  [
    "unknown numbers of other metrics",
    { "reward/mean": reward, "actor/grad_norm": [1, 1, 1, 1, 1, "NaN"] },
    "the mean reward rose from 0.4 to 0.5; nothing else changed unusually.",
  ],
  [
    "a metric that was constant",
    { "reward/mean": reward, "batch/failed_episodes": [0, 0, 0, 0, 0, 1] },
    "the mean reward rose from 0.4 to 0.5; the number of failed episodes rose unusually, from 0 to 1.",
  ],
] as const)("%s, in one sentence", (_, columns, text) =>
  expect(changeSentence(curves(columns as never), 5)).toBe(`Against step 5, ${text}`),
);

test("the first step has nothing before it, and the second is compared by a quarter", () => {
  const columns = { "reward/mean": reward, "actor/entropy": [2, 1, 1, 1, 1, 1] };
  expect(changeSentence(curves(columns), 0)).toBeUndefined();
  expect(changeSentence(curves(columns), -1)).toBeUndefined();
  expect(changeSentence(curves(columns), 1)).toContain("the entropy fell unusually, from 2 to 1.");
});
