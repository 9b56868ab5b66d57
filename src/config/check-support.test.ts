import { expect, test } from "vitest";
import { UserError } from "../errors.ts";
import { requireSupport, requireValues, unsupportedSettings } from "./check-support.ts";
import { composeConfig } from "./compose.ts";

const found = (...overrides: string[]) =>
  unsupportedSettings(composeConfig({ overrides })).map(({ message }) => message);

test("what ships is supported, and so is each default spelled out", () => {
  expect(found()).toEqual([]);
  expect(
    found("rllm.remote_runtime.enabled=false", "rllm.episode_logging.episode_log_dir=logs/rllm-training/default"),
  ).toEqual([]);
});

test.each([
  ["rllm.remote_runtime.enabled=true", "rllm.remote_runtime.enabled=true: agents in remote runtimes are not built yet"],
  ["local.sampler.type=vllm", 'local.sampler.type="vllm": the local engine samples by itself yet'],
  ["rllm.algorithm.adv_estimator=grpoo", "there is no such name, and none was registered; did you mean grpo?"],
  ["tinker_base_url=http://localhost:1", "only tinker honours it"],
])("%s cannot be honoured", (override, message) => {
  expect(found(override)).toEqual([expect.stringContaining(message)]);
});

test("values that change nothing are not refused, nor names that the user's code has registered", () => {
  expect(found("local.sharding=zero3", "rllm.gateway.cumulative_token_mode=true")).toEqual([]);
  const own = composeConfig({ overrides: ["rllm.algorithm.adv_estimator=mine"] });
  expect(unsupportedSettings(own, { "rllm.algorithm.adv_estimator": ["mine"] })).toEqual([]);
});

test("all are named at once with where they came from; on_unsupported=warn goes on", () => {
  const overrides = ["rllm.remote_runtime.enabled=true", "local.processes=2"];
  expect(() => requireSupport(composeConfig({ overrides }))).toThrow(UserError);
  expect(() => requireSupport(composeConfig({ overrides }))).toThrow(
    /cannot honour 2 settings:\n.*\(command line: rllm\.remote_runtime\.enabled=true\)\n.*local\.processes=2/,
  );
  const warned = requireSupport(composeConfig({ overrides: [...overrides, "rllm.on_unsupported=warn"] }));
  expect(warned.map(({ key }) => key)).toEqual(["rllm.remote_runtime.enabled", "local.processes"]);
});

test("values that are yet to be given are asked for all at once", () => {
  const composed = composeConfig({ overrides: ["rllm/backend=verl", "trainer.device=???"] });
  expect(() => requireValues(composed)).toThrow(
    /^2 values must be given:\n {2}actor_rollout_ref\.rollout\.name \(default .*\n {2}trainer\.device \(command line: trainer\.device=\?\?\?\)$/,
  );
  expect(() => composeConfig({ overrides: ["training.eps=???", "rllm.rollout.n=???"] })).toThrow(
    /rllm\.rollout\.n is \?\?\?[\s\S]*training\.eps is \?\?\?/,
  );
});

test("sampling parameters and arguments that no part reads are refused like any other key", () => {
  expect(found("+rllm.rollout.train.presence_penalty=0.5")).toEqual([
    "rllm.rollout.train.presence_penalty=0.5: no engine of Hone's takes this sampling parameter yet",
  ]);
});
