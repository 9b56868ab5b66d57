import { expect, test } from "vitest";
import { lossConfig, sumLoss, tinkerLoss } from "./losses.ts";

/** The worked examples of the protocol's description, in float64; the code computes in float32. */
const p = Float32Array.of(-0.5, -1.2, -0.1, -2);
const inputs = {
  logprobs: Float32Array.of(-0.7, -1, -0.6, -1.5),
  advantages: Float32Array.of(1, 1, -1, -0.5),
  weights: Float32Array.of(0, 1, 1, 0.5),
  sequence_ratio_mask: Float32Array.of(0, 1, 1, 1),
};

const worked: [name: string, config: Record<string, number>, loss: number, slopes: number[]][] = [
  ["cross_entropy", {}, 2.3, [0, -1, -1, -0.5]],
  ["importance_sampling", {}, -0.088147, [-1.221403, -0.818731, 1.648721, 0.303265]],
  ["ppo", {}, 0.029991, [0, -0.818731, 1.648721, 0]],
  ["cispo", {}, 0.821775, [-1.221403, -0.818731, 1.648721, 0.303265]],
  ["cispo", { clip_low_threshold: 0.8, clip_high_threshold: 1.2 }, 0.662477, [-1.2, -0.818731, 1.2, 0.4]],
  ["dro", { beta: 0.05 }, 0.6145, [-0.99, -1.01, 1.025, 0.475]],
  ["dro", { beta: 0.1 }, 0.629, [-0.98, -1.02, 1.05, 0.45]],
  ["gspo", {}, -0.467753, [-0.935507, -0.935507, 0.935507, 0.467753]],
];

test.each(worked)("%s with %o", (name, config, loss, slopes) => {
  const built = sumLoss(name, [{}, inputs], lossConfig(name, config));
  const offsets = Int32Array.of(0, 4);
  const value = built.evaluate({ offsets, logprobs: p }, Int32Array.of(1));
  expect(value.loss).toBeCloseTo(loss, 5);
  slopes.forEach((slope, index) => {
    expect(value.gradient.logprobs[index]).toBeCloseTo(slope, 5);
  });
});

test("a clipped token has no gradient at all", () => {
  const { gradient } = sumLoss("ppo", [inputs], lossConfig("ppo", {})).evaluate(
    { offsets: Int32Array.of(0, 4), logprobs: p },
    Int32Array.of(0),
  );
  expect([gradient.logprobs[0], gradient.logprobs[3]].map((slope) => Math.abs(slope!))).toEqual([0, 0]);
});

test("a weight of zero leaves out a token that is impossible", () => {
  const { loss } = sumLoss("cross_entropy", [{ weights: Float32Array.of(0, 1) }], {}).evaluate(
    { offsets: Int32Array.of(0, 2), logprobs: Float32Array.of(Number.NEGATIVE_INFINITY, -1) },
    Int32Array.of(0),
  );
  expect(loss).toBe(1);
});

test("an unknown loss or setting names the known ones", () => {
  expect(() => tinkerLoss("pp")).toThrow(/Did you mean ppo/);
  expect(() => tinkerLoss("stable_reinforce")).toThrow(/not published/);
  expect(() => tinkerLoss("toString")).toThrow(/"toString" does not exist/);
  expect(() => lossConfig("ppo", { clip_low: 0.9 })).toThrow(/it has clip_low_threshold, clip_high_threshold/);
  expect(() => lossConfig("importance_sampling", { beta: 1 })).toThrow(/it has no settings/);
  expect(() => lossConfig("dro", {})).toThrow(/beta must be given/);
  expect(() => lossConfig("dro", { beta: "0.1" })).toThrow(/not a finite number/);
  expect(() => lossConfig("ppo", { clip_low_threshold: 2 })).toThrow(/above/);
  expect(() =>
    sumLoss("gspo", [{ ...inputs, sequence_ratio_mask: new Float32Array(4) }], lossConfig("gspo", {})).evaluate(
      { offsets: Int32Array.of(0, 4), logprobs: p },
      Int32Array.of(0),
    ),
  ).toThrow(/0 everywhere/);
});
