import { describe, expect, it } from "vitest";
import { checkLossValue, NonFiniteLossError } from "./check-loss-value.ts";

const outputs = { offsets: new Int32Array([0, 2]), logprobs: new Float32Array([-1, -2]) };
const value = (loss: number, logprobs: number[]) => ({
  loss,
  gradient: { logprobs: new Float32Array(logprobs) },
  metrics: {},
});

describe("checkLossValue", () => {
  it("accepts what fits", () => checkLossValue("ppo", value(0.5, [1, 0]), outputs));

  it.each([
    ["a NaN loss", value(Number.NaN, [1, 0]), /"ppo" is NaN/],
    [
      "an infinite gradient",
      value(1, [0, Number.NEGATIVE_INFINITY]),
      /logprobs\[1\] is -Infinity \(logprobs\[1\] is -2/,
    ],
  ])("names %s", (_what, bad, message) => {
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(NonFiniteLossError);
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(message);
  });

  it.each([
    ["too short", value(1, [0]), /gradient of 1 entries for 2 logprobs/],
    [
      "by an output that was not requested",
      { ...value(1, [0, 0]), gradient: { logprobs: new Float32Array(2), entropy: new Float32Array(2) } },
      /did not request/,
    ],
  ])("refuses a gradient %s", (_what, bad, message) =>
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(message),
  );
});
