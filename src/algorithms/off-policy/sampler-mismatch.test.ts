import { expect, test } from "vitest";
import { samplerMismatch } from "./sampler-mismatch.ts";

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
