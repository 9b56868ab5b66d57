/** Each estimator and each loss trains a small model, and so does what they are combined with; update.e2e.ts trains a Llama. */
// Slow: a run for each algorithm.
import { afterAll, describe, expect, it } from "vitest";
import { sequenceLoss, tokenLoss } from "../algorithms/custom-loss.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";
import { algorithm, estimatorRuns, lossRuns, rewardTable } from "./update.fixture.ts";

const { newFolder } = temporaryFolders("every-algorithm");
const table = rewardTable();
afterAll(() => {
  table.print();
});

const losses = {
  likelihood: tokenLoss("likelihood", ["advantage", "referenceLogprob", "entropy"], (token) => ({
    loss: -token.advantage * token.logprob,
    slope: -token.advantage,
  })),
  whole_reply: sequenceLoss("whole_reply", ["advantage"], ({ logprob, advantage }) => ({
    losses: logprob.map((value, token) => -advantage[token]! * value),
    slopes: advantage.map((value) => -value),
  })),
};

const experiment = {
  ...toy({
    rllm: { trainer: { total_batches: 8, save_freq: 0, test_freq: 0 } },
    training: { num_minibatches: 2, ppo_epochs: 2 },
  }),
  losses,
};

async function run(label: string, overrides: readonly string[]) {
  const folder = `rllm.trainer.run_dir=${newFolder()}`;
  const summary = await train(experiment, { engine: openToy(), overrides: [folder, ...overrides] });
  expect(table.add(label, summary)).toBeGreaterThan(0.15);
  return { first: summary.history[0]!.metrics, last: summary.history.at(-1)!.metrics };
}

describe("a small model learns", () => {
  it.each(estimatorRuns)("by the estimator %s", async (name, overrides) => {
    await run(`estimator ${name}`, overrides);
  });

  it.each(lossRuns)("by the loss %s", async (name, overrides) => {
    await run(`loss ${name}`, overrides);
  });
});

describe("options on top of an algorithm", () => {
  it.each<[string, string[]]>([
    ["gspo, gradient of the sequence", algorithm("loss_fn=gspo", "policy_loss.gspo_gradient=sequence")],
    [
      "dual clip, sum by a constant",
      algorithm("clip_ratio_c=3", "loss_agg_mode=seq-mean-token-sum-norm", "loss_scale_factor=3"),
    ],
    ["entropy bonus", algorithm("entropy_coeff=0.001")],
    ["high-entropy tokens", algorithm("high_entropy_token_ratio=0.5")],
    ["a custom loss", algorithm("loss_fn=likelihood")],
    ["a custom loss, by sequence", algorithm("loss_fn=whole_reply")],
    ["another loss for a role", algorithm("loss_fn_map={agent: cispo, judge: likelihood}")],
  ])("%s", async (label, overrides) => {
    await run(label, overrides);
  });

  it("a KL in the loss adapts its weight to the target, and the weight is part of the run's progress", async () => {
    const { first, last } = await run(
      "adaptive KL in the loss",
      algorithm("kl_beta=0.01", "kl_target=0.001", "kl_horizon=100"),
    );
    expect(first["actor/kl_coef"]).toBe(0.01);
    expect(last["actor/kl_coef"]!).toBeGreaterThan(0.012);
  });

  it("a KL subtracted from the reward keeps the policy near the base model", async () => {
    const kl = algorithm("use_kl_in_reward=true", "kl_beta=0.02", "kl_estimator=k1");
    const { last } = await run("KL in the reward", kl);
    expect(last["actor/reward_kl_penalty"]!).toBeGreaterThan(0.1);
    expect(last["actor/reward_kl_penalty_coeff"]).toBe(0.02);
    expect(last["actor/kl_loss"]).toBeUndefined();
  });

  it.each(["token", "sequence"])("importance weights by %s are 1 if sampler and trainer agree", async (level) => {
    const { last } = await run(`importance weights by ${level}`, algorithm(`rollout_correction.tis_mode=${level}`));
    expect(last["rollout_corr/rollout_is_mean"]).toBeCloseTo(1, 3);
    expect(last["rollout_corr/rollout_is_eff_sample_size"]).toBeCloseTo(1, 3);
  });

  it("rules reject nothing if sampler and trainer agree", async () => {
    const rules = algorithm(
      "rollout_correction.rs_mode=[token_k1,seq_mean_k3]",
      "rollout_correction.rs_threshold=[2,0.1]",
    );
    const { last } = await run("rejection masks", rules);
    expect(last["rollout_corr/rollout_rs_masked_fraction"]).toBe(0);
    await run("rejection masks, bypass_mode", [...rules, "rllm.algorithm.rollout_correction.bypass_mode=true"]);
  });

  it.each<[string, string[], RegExp]>([
    ["an unknown loss", algorithm("loss_fn=pppo"), /neither built in nor registered.*ppo/],
    [
      "an unknown loss of a role",
      algorithm("loss_fn_map={main: gsppo}"),
      /the name gsppo is neither built in nor registered; did you mean ppo or gspo/,
    ],
    [
      "weights that could only be 1",
      algorithm("rollout_correction.tis_mode=token", "rollout_correction.bypass_mode=true"),
      /tis_mode="token": it requires .*bypass_mode=false/,
    ],
  ])("%s is a mistake that is found before the first step", async (_, overrides, message) => {
    await expect(run("", overrides)).rejects.toThrow(message);
  });
});
