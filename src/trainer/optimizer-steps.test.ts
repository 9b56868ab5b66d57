import { existsSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it, test, vi } from "vitest";
import type { TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";
import { learningRate, microbatchesOfTasks, type Schedule } from "./optimizer-steps.ts";
import { countOperations, metricLines, openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

/** Groups of these tasks, and a batch whose sequences belong to these groups. */
function shares(tasks: string[], groups: number[], atOnce: number) {
  const made = tasks.map((taskId, index): TrajectoryGroup => ({ id: `${index}`, taskId, role: "", members: [] }));
  const batch = { groups: Int32Array.from(groups) } as TrainingBatch;
  return microbatchesOfTasks(made, atOnce)(batch).map((share) => [...share]);
}

it.each([
  ["one task a pass", ["a", "b"], [0, 0, 1], 1, [[0, 1], [2]]],
  [
    "all groups of a task together",
    ["a", "a", "b", "b"],
    [0, 1, 1, 2, 3],
    1,
    [
      [0, 1, 2],
      [3, 4],
    ],
  ],
  ["several tasks a pass", ["a", "b", "c"], [0, 1, 1, 2], 2, [[0, 1, 2], [3]]],
  ["no pass for a task without sequences", ["a", "b", "c"], [0, 2], 1, [[0], [1]]],
  ["no sequences", ["a"], [], 1, []],
])("%s", (_, tasks, groups, atOnce, expected) => {
  expect(shares(tasks, groups, atOnce)).toEqual(expected);
});

// Recorded with get_scheduler of transformers 5.23: name, warm-up steps, the rate of each optimizer step.
test.each<[Schedule, number, number[]]>([
  ["constant", 0, [1, 1, 1]],
  ["constant", 3, [0, 0.333333, 0.666667, 1, 1, 1, 1, 1, 1, 1]],
  ["linear", 0, [1]],
  ["linear", 0, [1, 0.5]],
  ["linear", 0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]],
  ["linear", 2, [0, 0.5, 1, 0.8, 0.6, 0.4, 0.2]],
  ["linear", 10, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]],
  ["cosine", 0, [1]],
  ["cosine", 0, [1, 0.975528, 0.904508, 0.793893, 0.654508, 0.5, 0.345492, 0.206107, 0.095492, 0.024472]],
  ["cosine", 3, [0, 0.333333, 0.666667, 1, 0.950484, 0.811745, 0.61126, 0.38874, 0.188255, 0.049516]],
])("%s with %i warm-up steps has the rates of transformers", (schedule, warmupSteps, rates) => {
  const total = rates.length;
  const options = { schedule, warmupSteps, warmupRatio: 0, base: 1 };
  const found = rates.map((_, index) => Number(learningRate(index + 1, total, options).toFixed(6)));
  expect(found).toEqual(rates);
  expect(learningRate(total + 5, total, options)).toBe(learningRate(total, total, options));
});

test("warmup_steps wins over warmup_steps_ratio, and the decay goes to the minimum", () => {
  const rates = (minRatio: number) =>
    [1, 2, 3, 7, 10].map((step) =>
      learningRate(step, 10, { schedule: "linear", warmupSteps: 2, warmupRatio: 0.9, base: 1, minRatio }),
    );
  expect(rates(0)).toEqual([0, 0.5, 1, 0.5, 0.125]);
  expect(rates(0.5)).toEqual([0, 0.5, 1, 0.75, 0.5625]);
});

const { newFolder } = temporaryFolders("critic");

const gae = {
  rllm: {
    algorithm: { adv_estimator: "gae", lam: 0.9, gamma: 0.99 },
    critic: { learning_rate: 0.1, value_clip: 0.2 },
  },
  training: { num_minibatches: 2, ppo_epochs: 2 },
} as const;

const run = (overrides: string[] = [], engine = openToy(), folder = newFolder()) =>
  train(toy(gae), { engine, overrides: [`rllm.trainer.run_dir=${folder}`, ...overrides] });

describe("a run with a critic", () => {
  it("learns, and its critic learns to predict the rewards", async () => {
    const { history } = await run(["rllm.trainer.total_batches=12"]);
    const at = (name: string) => history.map(({ metrics }) => metrics[name]!);
    expect(at("reward/mean").at(-1)! - at("reward/mean")[0]!).toBeGreaterThan(0.2);
    expect(at("critic/values/mean")[0]).toBe(0);
    expect(at("critic/vf_loss").at(-1)).toBeLessThan(0.5 * at("critic/vf_loss")[0]!);
    expect(at("critic/optimizer_steps")).toEqual(new Array(12).fill(4));
    expect(at("critic/lr")[0]).toBe(0.1);
    expect(at("critic/returns/mean")[0]).toBeGreaterThan(0);
    for (const name of ["critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm"]) {
      expect(at(name).every(Number.isFinite), name).toBe(true);
    }
  });

  it("trains the critic alone during its warm-up", async () => {
    const { history } = await run(["rllm.critic.warmup_steps=3"]);
    expect(history.map(({ metrics }) => metrics["update/optimizer_steps"])).toEqual([0, 0, 0, 4, 4, 4]);
    expect(history.map(({ metrics }) => metrics["critic/optimizer_steps"])).toEqual([4, 4, 4, 4, 4, 4]);
  });

  it("subtracts the KL from the rewards of the tokens", async () => {
    const { history } = await run(["rllm.algorithm.use_kl_in_reward=true", "rllm.algorithm.kl_beta=0.05"]);
    expect(history.at(-1)!.metrics["actor/reward_kl_penalty"]).toBeGreaterThan(0);
  });

  it("is the same run when it is killed at any operation and resumed", async () => {
    const whole = newFolder();
    const counted = countOperations();
    await run([], counted.toy, whole);
    const total = counted.count();
    for (const share of [0.4, 0.55, 0.7, 0.9]) {
      const folder = newFolder();
      await expect(run([], countOperations(Math.floor(total * share)).toy, folder)).rejects.toThrow("killed");
      await run(["training.resume_mode=auto"], openToy(), folder);
      expect(metricLines(folder)).toEqual(metricLines(whole));
    }
  });

  it("learns while rollouts continue, in several epochs", async () => {
    const keys = "{enable: true, mini_batch_size: 4, fwd_bwd_group_size: 2, staleness_threshold: 1}";
    const { history } = await run([`rllm.async_training=${keys}`]);
    expect(history).toHaveLength(6);
    for (const { metrics } of history) expect(metrics["critic/optimizer_steps"]).toBe(4);
  });

  it("estimates values for one role, and leaves the other to its own estimator", async () => {
    const { history } = await run(["rllm.algorithm.adv_estimator=grpo", "rllm.algorithm.estimator_map={agent: gae}"]);
    expect(history[0]!.metrics["critic/optimizer_steps"]).toBe(4);
    const none = await run(["rllm.algorithm.estimator_map={judge: gae}", "rllm.algorithm.adv_estimator=grpo"]);
    expect(none.history[0]!.metrics["critic/optimizer_steps"]).toBe(0);
  });

  it.each<[string, string[], RegExp]>([
    [
      "per_step",
      ["rllm.stepwise_advantage={enable: true, mode: per_step}", "rllm.algorithm.gamma=1"],
      /a critic's values are compared with one reward/,
    ],
    [
      "a critic with nothing to adapt",
      ["model.lora_rank=4", "model.train_attn=false", "model.train_mlp=false", "model.train_unembed=true"],
      /with gae, it requires layers for the critic to train/,
    ],
  ])("refuses %s before the first step", async (_, overrides, message) => {
    await expect(run(overrides)).rejects.toThrow(message);
  });

  it("continues from a checkpoint without a critic with a new one, and warns", async () => {
    const folder = newFolder();
    await run([], openToy(), folder);
    const checkpoint = join(folder, "checkpoints", "step-000006");
    expect(existsSync(join(checkpoint, "critic", "state.json"))).toBe(true);
    const plain = newFolder();
    await train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${plain}`] });
    const said: string[] = [];
    const spy = vi.spyOn(process.stdout, "write").mockImplementation((text) => said.push(String(text)) > 0);
    const resume = ["training.resume_mode=auto", "rllm.trainer.total_batches=8", "rllm.trainer.logger=[console]"];
    const { history } = await run(resume, openToy(), plain).finally(() => spy.mockRestore());
    expect(said.join("")).toContain("the checkpoint has no critic: the critic starts fresh");
    expect(history[6]!.metrics["critic/values/mean"]).toBe(0);
  });
});
