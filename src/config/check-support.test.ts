import { expect, test } from "vitest";
import { UserError } from "../errors.ts";
import { requireSupport, requireValues, unsupportedSettings } from "./check-support.ts";
import { composeConfig } from "./compose.ts";

const found = (...overrides: string[]) =>
  unsupportedSettings(composeConfig({ overrides })).map(({ message }) => message);

test("shipped defaults are supported, also when set explicitly", () => {
  expect(found()).toEqual([]);
  expect(
    found("rllm.remote_runtime.enabled=false", "rllm.episode_logging.episode_log_dir=logs/rllm-training/default"),
  ).toEqual([]);
});

test.each([
  [
    "rllm.remote_runtime.enabled=true",
    "rllm.remote_runtime.enabled=true: agents in remote runtimes are not supported yet",
  ],
  ["local.sampler.type=vllm", 'local.sampler.type="vllm": external samplers are not supported yet'],
  ["rllm.algorithm.adv_estimator=grpoo", "the name is neither built in nor registered; did you mean grpo?"],
  ["tinker_base_url=http://localhost:1", "only the tinker backend supports it"],
])("%s is not supported", (override, message) => {
  expect(found(override)).toEqual([expect.stringContaining(message)]);
});

test("neutral values and names registered by the user's code are not rejected", () => {
  expect(found("local.sharding=zero3", "rllm.gateway.cumulative_token_mode=true")).toEqual([]);
  const own = composeConfig({ overrides: ["rllm.algorithm.adv_estimator=mine"] });
  expect(unsupportedSettings(own, { "rllm.algorithm.adv_estimator": ["mine"] })).toEqual([]);
});

test("all unsupported settings are reported at once with their origins; on_unsupported=warn continues", () => {
  const overrides = ["rllm.remote_runtime.enabled=true", "local.processes=2"];
  expect(() => requireSupport(composeConfig({ overrides }))).toThrow(UserError);
  expect(() => requireSupport(composeConfig({ overrides }))).toThrow(
    /does not support 2 settings:\n.*\(command line: rllm\.remote_runtime\.enabled=true\)\n.*local\.processes=2/,
  );
  const warned = requireSupport(composeConfig({ overrides: [...overrides, "rllm.on_unsupported=warn"] }));
  expect(warned.map(({ key }) => key)).toEqual(["rllm.remote_runtime.enabled", "local.processes"]);
});

test("all missing values are reported at once", () => {
  const composed = composeConfig({ overrides: ["rllm/backend=verl", "trainer.device=???"] });
  expect(() => requireValues(composed)).toThrow(
    /^2 required values are missing:\n {2}actor_rollout_ref\.rollout\.name \(default .*\n {2}trainer\.device \(command line: trainer\.device=\?\?\?\)$/,
  );
  expect(() => composeConfig({ overrides: ["training.eps=???", "rllm.rollout.n=???"] })).toThrow(
    /rllm\.rollout\.n is \?\?\?[\s\S]*training\.eps is \?\?\?/,
  );
});

test("unknown sampling parameters are rejected like any other unsupported key", () => {
  expect(found("+rllm.rollout.train.presence_penalty=0.5")).toEqual([
    "rllm.rollout.train.presence_penalty=0.5: this sampling parameter is not supported yet",
  ]);
});
