import { expect, test } from "vitest";
import { lossDefaults } from "../algorithms/policy-losses.ts";
import { composeConfig } from "../config/compose.ts";
import { klOptions, otherModels, otherModelsIn, policyLossOptions, rewardModelOptions } from "./options.ts";

const optionsOf = (...overrides: string[]) => rewardModelOptions(composeConfig({ overrides }).config);

test("a reward model has a name and a weight", () => {
  expect(optionsOf()).toBeUndefined();
  expect(optionsOf("rllm.reward.model=./a")?.models).toEqual([{ model: "./a", name: "a", weight: 1 }]);
});

const compose = (...settings: string[]) =>
  composeConfig({ overrides: settings.map((setting) => `rllm.algorithm.${setting}`) }).config;

test.each([
  [[], undefined],
  [["kl_beta=null", "kl_target=0.1"], undefined],
  [["use_kl_in_reward=true"], undefined],
  [["kl_beta=0.1"], { weight: 0.1, estimator: "k3", target: null, horizon: 10_000, in: "loss" }],
  [
    ["kl_beta=0.1", "kl_target=0.2", "kl_horizon=50", "kl_estimator=k1", "use_kl_in_reward=true"],
    { weight: 0.1, estimator: "k1", target: 0.2, horizon: 50, in: "reward" },
  ],
])("%j is one KL", (settings, expected) => {
  expect(klOptions(compose(...settings))).toEqual(expected);
});

test("losses are found by every system's name, and the defaults of constants are those of the losses", () => {
  const { lossFn, lossFnByRole, constants } = policyLossOptions(
    compose("loss_fn=geo_mean", "loss_fn_map={a: vanilla}"),
  );
  expect([lossFn, lossFnByRole]).toEqual(["gmpo", { a: "ppo" }]);
  expect({ ...lossDefaults, ...constants }).toEqual(lossDefaults);
  expect(policyLossOptions(compose("clip_ratio_c=3", "policy_loss.tau_pos=2")).constants).toMatchObject({
    clip_ratio_c: 3,
    tau_pos: 2,
  });
});

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
