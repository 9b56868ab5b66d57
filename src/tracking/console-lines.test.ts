import fc from "fast-check";
import { describe, expect, it, test } from "vitest";
import {
  bar,
  chart,
  cutText,
  describeEvent,
  fit,
  type Segment,
  type StepEnd,
  sparkline,
  stepLine,
  textWidth,
  validationLine,
} from "./console-lines.ts";

test("a warning that quotes a model cannot control a terminal or start a line of the log", () => {
  const text = "reward threw on \x1b[2J\u202eok\n2030-01-01 fake line\x07";
  for (const type of ["warning", "health"] as const) {
    const shown = describeEvent({ type, text } as Parameters<typeof describeEvent>[0])!;
    expect(shown).toBe(`${type}: reward threw on \\x1b[2J\\u202eok\n  2030-01-01 fake line\\x07`);
  }
});

it.each([
  ["loading", 7],
  ["日本語", 6],
  ["한국어", 6],
  ["e\u0301te\u0301", 3],
  ["🙂 ok", 5],
  ["👩‍👩‍👧", 2],
  ["—…é", 3],
])("%s takes %d columns", (text, width) => {
  expect(textWidth(text)).toBe(width);
});

it("text is cut by columns, with an ellipsis, and never beyond them", () => {
  expect(cutText("loading the model", 10)).toBe("loading t…");
  expect(cutText("loading", 7)).toBe("loading");
  expect(cutText("日本語日本語", 6)).toBe("日本…");
  expect(cutText("abc", 0)).toBe("");
  for (const text of ["日a本b語", "e\u0301🙂x日", "plain"]) {
    for (let width = 0; width < 8; width++) expect(textWidth(cutText(text, width))).toBeLessThanOrEqual(width);
  }
});

describe("bar", () => {
  it.each([
    [0, "░░░░"],
    [0.5, "██░░"],
    [1, "████"],
    [7, "████"],
    [-1, "░░░░"],
  ])("shows %d", (fraction, text) => expect(bar(fraction, 4)).toBe(text));
});

describe("sparkline", () => {
  it.each([
    [[], 4, ""],
    [[0.5], 4, "▁"],
    [[1, 1, 1], 4, "▁▁▁"],
    [[0, 1], 4, "▁█"],
    [[0, Number.NaN, 1], 4, "▁█"],
    [[0, 0, 4, 4, 7, 7], 3, "▁▅█"],
  ])("draws %j in %d cells", (values, width, text) => expect(sparkline(values, width)).toBe(text));
});

describe("chart", () => {
  it("puts values on a scale", () => {
    expect(chart([0.1, 0.2, Number.NaN, 0.9, 0.5], { width: 20, height: 4 })).toEqual([
      "0.90 |      *",
      "     |        *",
      "     |",
      "0.10 |* *",
      "     +---------",
      "      1       5",
    ]);
  });

  it("does not label two values with the same number", () => {
    const labels = (values: number[]) =>
      chart(values, { width: 30, height: 3 })
        .map((line) => /^ *(\S+) \|/.exec(line)?.[1])
        .filter((label) => label !== undefined);
    expect(labels([0.0712, 0.0741])).toEqual(["0.074", "0.071"]);
    expect(labels([0.07, 0.07000000001])).toEqual(["7.00e-2", "7.00e-2"]);
    expect(labels([1e-9, 2e-9])).toEqual(["2.00e-9", "1.00e-9"]);
    expect(labels([0.5, 0.5])).toEqual(["0.50"]);
  });

  it("averages values that do not fit, and starts at the first step of a resumed run", () => {
    const values = Array.from({ length: 100 }, (_, index) => index);
    const lines = chart(values, { width: 20, height: 2, first: 101 });
    expect(lines.at(-1)).toMatch(/^ {7}101 +200$/);
    expect(lines[0]).toMatch(/^99\.00 \| {6}\*+$/);
  });

  it("is never wider than requested", () => {
    const value = fc.oneof(fc.double({ min: -1e3, max: 1e3, noNaN: true }), fc.constant(Number.NaN));
    fc.assert(
      fc.property(fc.array(value, { maxLength: 200 }), fc.integer({ min: 24, max: 100 }), (values, width) => {
        for (const line of chart(values, { width, height: 5 })) expect(line.length).toBeLessThanOrEqual(width);
      }),
    );
  });
});

it("draws a run of 300,000 steps", () => {
  const values = Array.from({ length: 300_000 }, (_, index) => index);
  expect(chart(values, { width: 40, height: 4 })).toHaveLength(6);
  expect(sparkline(values, 8)).toBe("▁▂▃▄▅▆▇█");
});

const event: StepEnd = {
  type: "step-end",
  step: 3,
  total: 20,
  epoch: 0,
  seconds: 12.34,
  metrics: {
    "reward/mean": 0.342,
    "batch/num_tasks": 16,
    "batch/solve_all": 0.0625,
    "batch/solve_partial": 0.25,
    "batch/agent/total": 16,
    "batch/agent/informative": 12,
    "actor/pg_loss": -0.0123,
    "actor/kl_loss": 0.00034,
    "actor/grad_norm": 0.83,
    "actor/lr": 1e-3,
    "time/rollout": 4.1,
    "time/update": 7.9,
    "perf/throughput": 1234,
  },
};

describe("stepLine", () => {
  it.each([
    [
      undefined,
      "step  3/20  reward 0.342 (+0.09)  solved  5/16  groups 12/16 with signal  loss -0.012  kl 3.4e-4  grad 0.830  lr 1e-3  12.3 s (sample 4.1 train 7.9)  1,234 tok/s",
    ],
    [
      120,
      "step  3/20  reward 0.342 (+0.09)  solved  5/16  groups 12/16 with signal  12.3 s (sample 4.1 train 7.9)  1,234 tok/s",
    ],
    [100, "step  3/20  reward 0.342 (+0.09)  solved  5/16  groups 12/16 with signal  12.3 s  1,234 tok/s"],
    [80, "step  3/20  reward 0.342 (+0.09)  solved  5/16  groups 12/16 with signal  12.3 s"],
    [60, "step  3/20  reward 0.342  solved  5/16  12.3 s"],
    [40, "step  3/20  reward 0.342  12.3 s"],
    [24, "step  3/20  reward 0.342"],
    [12, "step  3/20 …"],
  ])("fits into %s characters", (width, text) => {
    expect(stepLine(event, 0.25, width === undefined ? {} : { width })).toBe(text);
  });

  it("leaves out what the step does not have", () => {
    expect(stepLine({ ...event, metrics: {} }, 0.25)).toBe("step  3/20  12.3 s");
    const roles = { "reward/solver/mean": 0.2, "reward/judge/mean": 0.4, "actor/grad_norm": Number.NaN };
    expect(stepLine({ ...event, metrics: roles })).toBe("step  3/20  reward 0.300  grad NaN  12.3 s");
  });
});

it("validationLine leaves out metrics that say nothing", () => {
  const metrics = { "val/reward": 0.5, "val/gsm8k/reward": 0.5, "val/gsm8k/pass@1": 0.25, "val/unknown": 0, other: 1 };
  const validation = { step: 5, metrics, seconds: 4.21 };
  expect(validationLine(validation)).toBe("validation  after step 5  reward 0.500  gsm8k/pass@1 0.250  4.2 s");
  expect(validationLine(validation, { width: 40 })).toBe("validation  reward 0.500  4.2 s");
  expect(validationLine({ ...validation, metrics: { "val/unknown": 3 } })).toContain("unknown 3");
  const failed = { "val/reward": 0, "val/failed": 9, "val/failures/model": 9 };
  expect(validationLine({ ...validation, metrics: failed })).toContain("failed 9  failures/model 9  4.2 s");
});

it("fit drops the heaviest part first, never exceeds the width, and colors only the rest", () => {
  const parts = fc.array(fc.record({ text: fc.string({ maxLength: 12 }), weight: fc.nat(5), close: fc.boolean() }), {
    minLength: 1,
  });
  fc.assert(
    fc.property(parts, fc.nat(60), (segments: Segment[], width) => {
      expect(fit(segments, width).length).toBeLessThanOrEqual(width);
    }),
  );
  const shout = (text: string) => `<${text}>`;
  expect(
    fit(
      [
        { text: "a", weight: 0, style: shout },
        { text: "bbbb", weight: 1, style: shout },
      ],
      3,
    ),
  ).toBe("<a>");
});
