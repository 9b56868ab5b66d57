import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { evaluateCase } from "./cases.ts";
import { type ConfigCase, casesSchema } from "./schema.ts";

const recorded = casesSchema.parse(JSON.parse(readFileSync(new URL("recorded.json", import.meta.url), "utf8")));

test("every composition equals the recorded one, or the decision about it", () => {
  const results = recorded.map(evaluateCase);
  expect(results.filter(({ differences }) => differences.length > 0)).toEqual([]);
  expect(results.filter(({ decisions }) => decisions.length > 0).map(({ id }) => id)).toEqual([
    "v-row11-native-router_replay",
    "v-row29-native-train_batch_size",
    "v-row30-native-max_prompt_length",
    "v-dict-group-vs-native",
    "v-async",
    "v-sync-ckpt-nccl",
    "v-r3-native",
  ]);
});

test("a wrong value, a missing warning and an unexpected warning are reported", () => {
  const one: ConfigCase = {
    id: "wrong",
    backend: "verl",
    overrides: ["rllm/backend=verl", "algorithm.adv_estimator=rloo"],
    changes: { "rllm.algorithm.adv_estimator": "gae" },
    removed: [],
    warnings: [{ category: "conflict", paths: ["a", "b"] }],
  };
  expect(evaluateCase(one).differences).toEqual([
    'rllm.algorithm.adv_estimator is "rloo", recorded "gae"',
    "does not warn: conflict a b",
    "warns: deprecated_native algorithm.adv_estimator rllm.algorithm.adv_estimator",
  ]);
});

test.each([
  [
    "clip_ratio alone means both bounds",
    ["actor_rollout_ref.actor.clip_ratio=0.15"],
    { "rllm.algorithm.eps_clip": 0.15 },
  ],
  ["the reply's length is one value", ["data.max_response_length=400"], { "rllm.data.max_response_length": 400 }],
])("differs by decision: %s", (name, overrides, changes) => {
  const one = { ...recorded[0]!, id: name, overrides: ["rllm/backend=verl", ...overrides], changes: {}, warnings: [] };
  const result = evaluateCase({ ...one, changes });
  expect(result.decisions).toEqual([name]);
  expect(result.differences.filter((line) => !line.startsWith("warns: deprecated_native"))).toEqual(
    name.startsWith("clip") ? ["actor_rollout_ref.actor.clip_ratio_high becomes 0.15, recorded unchanged"] : [],
  );
});
