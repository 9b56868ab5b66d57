import { expect, test } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import { otherModels, otherModelsIn } from "./other-models.ts";

const none = { kind: "none" } as const;
const critic = { adapter: { kind: "full" }, head: "value", model: "judge" } as const;
const { config } = composeConfig({ overrides: ["model.name=small"] });

test("lists the models with their roles; the policy's own model is not named", () => {
  const teaching = {
    teachers: [
      { name: "a", key: null, kind: "model", model: "small" },
      { name: "b", key: "b", kind: "model", model: "large" },
      { name: "c", key: "c", kind: "server", url: "http://here", model: undefined, apiKey: undefined },
    ],
    ...{ column: undefined, count: 0, longest: 8 },
  } as const;
  const rewardModels = { models: [{ model: "small", name: "small", weight: 1 }], ownWeight: 1, normalize: false };
  const models = { reference: { adapter: none }, critic };
  expect(otherModels({ models, teaching, rewardModels }, config)).toEqual([
    { role: "reference model", adapter: none },
    { role: "critic", ...critic },
    { role: "teacher", adapter: none },
    { role: "teacher", adapter: none, model: "large" },
    { role: "reward model", adapter: none, model: "small" },
  ]);
  const alone = { models: { ...models, reference: undefined, critic: undefined }, teaching: undefined, rewardModels };
  expect(otherModels(alone, composeConfig({ overrides: ["rllm.reward.use_engine=true"] }).config)).toEqual([]);
});

test("a configuration without an experiment names a critic, a reference and reward models", () => {
  expect(otherModelsIn(config)).toEqual([]);
  const overrides = ["rllm.algorithm.adv_estimator=gae", "rllm.algorithm.kl_beta=0.1", "rllm.reward.model=judge"];
  const roles = otherModelsIn(composeConfig({ overrides }).config).map(({ role, model }) => [role, model]);
  expect(roles).toEqual([
    ["reference model", undefined],
    ["critic", undefined],
    ["reward model", "judge"],
  ]);
});
