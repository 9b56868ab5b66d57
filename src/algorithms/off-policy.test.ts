import fc from "fast-check";
import { expect, test } from "vitest";
import { importanceWeights, rejectionMask, rejectionRules, samplerMismatch } from "./off-policy.ts";

const trainer = Float32Array.of(-1, -1, -2, -0.5);
const sampler = Float32Array.of(-1, -2, -1, -0.5);
const offsets = Int32Array.of(0, 2, 2, 4);

test("weights are ratios, truncated at the cap, by token or by sequence", () => {
  const token = importanceWeights(trainer, sampler, offsets, { level: "token", cap: 2 });
  expect([...token.weights].map((weight) => weight.toFixed(4))).toEqual(["1.0000", "2.0000", "0.3679", "1.0000"]);
  expect(token.metrics.rollout_is_max).toBeCloseTo(Math.E, 4);
  expect(token.metrics.rollout_is_ratio_fraction_high).toBeCloseTo(0.25);
  expect(token.metrics.rollout_is_ratio_fraction_low).toBeCloseTo(0.25);
  const sequence = importanceWeights(trainer, sampler, offsets, { level: "sequence", cap: 10 });
  expect(sequence.weights[0]).toBeCloseTo(Math.E, 4);
  expect(sequence.weights[1]).toBeCloseTo(Math.E, 4);
  expect(sequence.weights[3]).toBeCloseTo(1 / Math.E, 4);
  const masked = importanceWeights(trainer, sampler, offsets, { level: "token", cap: 2, beyond: "mask" });
  expect(masked.weights[1]).toBe(0);
  const normal = importanceWeights(trainer, sampler, offsets, { level: "token", cap: 2, normalize: true });
  expect(normal.weights.reduce((sum, weight) => sum + weight, 0) / 4).toBeCloseTo(1, 5);
});

test("equal policies give weights of 1 and no rejections", () => {
  const { weights, metrics } = importanceWeights(trainer, trainer, offsets, { level: "token", cap: 2 });
  expect([...weights]).toEqual([1, 1, 1, 1]);
  expect(metrics.rollout_is_eff_sample_size).toBeCloseTo(1);
  const rules = rejectionRules(["token_k1", "seq_max_k3"], [1.01, 0.001]);
  expect([...rejectionMask(trainer, trainer, offsets, rules).keep]).toEqual([1, 1, 1, 1]);
});

test("a rule rejects tokens or whole sequences; several rules apply together", () => {
  const mask = (names: string[], thresholds: (string | number)[]) =>
    [...rejectionMask(trainer, sampler, offsets, rejectionRules(names, thresholds)).keep].join("");
  expect(mask(["token_k1"], [2])).toBe("1001");
  expect(mask(["token_k1"], ["0.1_1.5"])).toBe("1101");
  expect(mask(["seq_sum_k1"], [2])).toBe("0000");
  expect(mask(["seq_mean_k1"], ["0.1_1.5"])).toBe("1100");
  expect(mask(["seq_mean_k2"], [0.3])).toBe("1111");
  expect(mask(["seq_max_k2", "token_k1"], [0.6, "0.1_1.5"])).toBe("1101");
  const { metrics } = rejectionMask(trainer, sampler, offsets, rejectionRules(["token_k1"], [2]));
  expect(metrics.rollout_rs_masked_fraction).toBeCloseTo(0.5);
  expect(metrics.rollout_rs_seq_masked_fraction).toBeCloseTo(2 / 3);
});

test.each<[string[], (string | number)[], RegExp]>([
  [["token_k4"], [1], /rejection rule "token_k4" does not exist/],
  [["seq_max_k1"], [1], /rejection rule "seq_max_k1" does not exist/],
  [["token_k2"], ["0.1_0.2"], /has no valid threshold/],
  [["token_k1"], [], /has no valid threshold/],
  [["token_k1"], [-1], /has no valid threshold/],
  [["token_k1"], ["1_2_3"], /has no valid threshold/],
])("%j with %j is a mistake", (names, thresholds, message) => {
  expect(() => rejectionRules(names, thresholds)).toThrow(message);
});

test("extreme distances give finite metrics", () => {
  const logprob = fc.constantFrom(-1e4, -800, -30, -1, 0);
  const rows = fc.array(fc.array(fc.tuple(logprob, logprob), { maxLength: 3 }), { minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(
      rows,
      fc.constantFrom("token" as const, "sequence" as const),
      fc.boolean(),
      (drawn, level, normalize) => {
        const own = Int32Array.from([0, ...drawn.map((_, row) => drawn.slice(0, row + 1).flat().length)]);
        const [left, right] = [0, 1].map((at) => Float32Array.from(drawn.flat(), (pair) => pair[at]!));
        const { weights, metrics } = importanceWeights(left!, right!, own, { level, cap: 2, normalize });
        const rules = rejectionRules(["seq_sum_k1", "token_k3", "seq_max_k2"], [2, 2, 2]);
        const rejected = rejectionMask(left!, right!, own, rules);
        const figures = [...weights, ...Object.values(metrics), ...Object.values(rejected.metrics)];
        for (const figure of figures) expect(figure).toSatisfy(Number.isFinite);
      },
    ),
  );
});

test("agreement, disagreement, a broken token, no tokens", () => {
  const same = Float32Array.of(-1, -2);
  expect(samplerMismatch(same, same)).toEqual({
    "rollout/logprob_diff_mean": 0,
    "rollout/logprob_diff_max": 0,
    "rollout/kl_sampler_trainer_k1": 0,
    "rollout/kl_sampler_trainer_k2": 0,
    "rollout/kl_sampler_trainer_k3": 0,
    "rollout/effective_sample_size": 1,
  });
  const apart = samplerMismatch(Float32Array.of(-1, -1), Float32Array.of(-1, -1 - Math.log(3)));
  expect(apart["rollout/logprob_diff_max"]).toBeCloseTo(Math.log(3));
  expect(apart["rollout/kl_sampler_trainer_k3"]).toBeCloseTo((2 - Math.log(3)) / 2);
  expect(apart["rollout/effective_sample_size"]).toBeCloseTo(16 / 20);
  const broken = samplerMismatch(Float32Array.of(-1, -1), Float32Array.of(-1, -2000));
  expect(Object.values(broken).every(Number.isFinite)).toBe(true);
  expect(samplerMismatch(new Float32Array(0), new Float32Array(0))).toEqual({});
});
