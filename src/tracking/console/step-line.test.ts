import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { fit, type Segment, type StepEnd, stepLine, validationLine } from "./step-line.ts";

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
