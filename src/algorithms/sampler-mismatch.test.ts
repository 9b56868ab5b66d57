import { expect, test } from "vitest";
import { samplerMismatch } from "./sampler-mismatch.ts";
import { readVectors } from "./vectors/read-vectors.fixture.ts";

interface Inputs {
  sampling_logprobs: number[];
  training_logprobs: number[];
  mask: number[];
}

test.each([
  ...readVectors<Inputs, object, Record<string, number>>("metrics", "rllm/tinker_metrics"),
  ...readVectors<Inputs, object, Record<string, number>>("metrics", "tinker/kl_sample_train"),
])("$name", ({ name, inputs, outputs }) => {
  const trained = (values: number[]) => Float32Array.from(values.filter((_, index) => inputs.mask[index] === 1));
  const got = samplerMismatch(trained(inputs.training_logprobs), trained(inputs.sampling_logprobs));
  // rLLM's first figure is the mean absolute difference, the cookbook's is signed.
  if (name.startsWith("rllm"))
    expect(got["rollout/logprob_diff_mean"]).toBeCloseTo(outputs["train/kl_sample_train_v1"]!, 6);
  else expect(got["rollout/kl_sampler_trainer_k1"]).toBeCloseTo(outputs["optim/kl_sample_train_v1"]!, 6);
});

test("agreement, disagreement, a broken token, no tokens", () => {
  const same = Float32Array.of(-1, -2);
  expect(samplerMismatch(same, same)).toEqual({
    "rollout/logprob_diff_mean": 0,
    "rollout/logprob_diff_max": 0,
    "rollout/kl_sampler_trainer_k1": 0,
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
