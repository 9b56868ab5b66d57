import { expect, test } from "vitest";
import { lossDefaults } from "../../algorithms/losses/policy-losses.ts";
import { composeConfig } from "../../config/compose.ts";
import { klOptions, policyLossOptions } from "./loss-options.ts";

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
