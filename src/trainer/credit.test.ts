// Slow: runs are killed and resumed.
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { UserError } from "../base/errors.ts";
import type { ConfigInput } from "../config/schema.ts";
import { nightly } from "../nightly.fixture.ts";
import { rewardGroup } from "../trajectories/sample-episodes.fixture.ts";
import { dropUniformGroups } from "./credit.ts";
import { countOperations, metricLines, openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("credit");

/** Solved only if all four letters are right, which is rare at first. */
const allOrNothing = (text: string) => Number(text === "aaaa");
const graded = (text: string) => [...text].filter((letter) => letter === "a").length / 4;

const run = (experiment: ReturnType<typeof toy>, engine = openToy(), folder = newFolder()) =>
  train(experiment, { engine, overrides: [`rllm.trainer.run_dir=${folder}`] });

/** Trains for longer and expects the reward to rise. */
async function learns(experiment: ReturnType<typeof toy>): Promise<Record<string, number>> {
  const overrides = ["rllm.trainer.total_batches=8", "training.num_minibatches=2", "training.ppo_epochs=2"];
  const settings = [...overrides, "rllm.trainer.save_freq=0", "rllm.trainer.test_freq=0"];
  const { history } = await train(experiment, {
    engine: openToy(),
    overrides: [...settings, `rllm.trainer.run_dir=${newFolder()}`],
  });
  const rewards = history.map(({ metrics }) => metrics["reward/mean"]!);
  const mean = (some: number[]) => some.reduce((sum, reward) => sum + reward, 0) / some.length;
  expect(mean(rewards.slice(-2)) - mean(rewards.slice(0, 2))).toBeGreaterThan(0.15);
  return { ...history[0]!.metrics };
}

/** Two calls; the second one continues the first. */
const twoTurns: Workflow<ToyRow> = async (_task, { model }) => {
  const first = await model.chat([{ role: "user", content: "b" }], { maxTokens: 2 });
  const history = [{ role: "user", content: "b" }, first.message, { role: "user", content: "c" }] as const;
  const second = await model.chat(history, { maxTokens: 2 });
  const stepRewards = [graded(first.text), graded(second.text)];
  return { reward: stepRewards[0]! + stepRewards[1]!, stepRewards: { agent: stepRewards } };
};

const rejection = (options: object): ConfigInput => ({
  rllm: { rollout: { n: 2 }, rejection_sample: { enable: true, ...options } },
});
const dynamic: ConfigInput = { rllm: { rollout: { n: 2 }, dynamic_sampling: { enable: true } } };

describe("gathering", () => {
  it("keeps drawing until enough tasks are partly solved, and trains on all draws", async () => {
    const { history } = await run(toy(rejection({ min_partial_solve_tasks: 3 }), allOrNothing));
    const draws = history.map(({ metrics }) => metrics["batch/groups_before_filter"]! / 4);
    expect(Math.max(...draws)).toBeGreaterThan(1);
    expect(draws.every((count) => count <= 10)).toBe(true);
    expect(history[0]!.metrics["groups/num_trajs_before_filter"]).toBe(8 * draws[0]!);
    expect(history[0]!.metrics["batch/num_sequences"]).toBe(8 * draws[0]!);
  });

  it("counts epochs as passes over the data, also if steps need several draws", async () => {
    // 64 tasks in draws of 4: 16 draws an epoch.
    const overrides = [
      "rllm.trainer.total_batches=null",
      "rllm.trainer.total_epochs=1",
      `rllm.trainer.run_dir=${newFolder()}`,
    ];
    const whole = await train(toy(rejection({ min_partial_solve_tasks: 3 }), allOrNothing), {
      engine: openToy(),
      overrides,
    });
    const draws = whole.history.map(({ metrics }) => metrics["batch/groups_before_filter"]! / 4);
    const total = draws.reduce((sum, count) => sum + count, 0);
    expect(draws.length).toBeLessThan(16);
    expect(total).toBeGreaterThanOrEqual(16);
    expect(total - draws.at(-1)!).toBeLessThan(16);
    expect(whole.exitCode).toBe(0);
  });

  it("draws the tasks of the next batches, each once an epoch, widened by the multiplier", async () => {
    const seen: string[] = [];
    const experiment = toy(rejection({ min_partial_solve_tasks: 64, max_rounds: 4, multiplier: 2 }), () => 0);
    const { workflow } = experiment;
    const { history } = await run({
      ...experiment,
      workflow: (task, context) => {
        if (context.purpose === "train" && context.rollout === 0) seen.push(task.id);
        return workflow!(task, context);
      },
      config: {
        ...experiment.config!,
        rllm: { ...experiment.config!.rllm, trainer: { total_batches: 2, logger: [] } },
      },
    });
    expect(seen).toHaveLength(64);
    expect(new Set(seen).size).toBe(64);
    expect(history.map(({ metrics }) => metrics["batch/num_tasks"])).toEqual([32, 32]);
    expect(history[0]!.metrics["update/optimizer_steps"]).toBe(0);
  });

  it("replaces tasks without a signal by others, and trains on whole batches of those that have one", async () => {
    const { history } = await run(toy(dynamic));
    for (const { metrics } of history) {
      expect(metrics["batch/num_sequences"]).toBe(8);
      expect(metrics["advantage/agent/fraction_zero"]).toBe(0);
      const groups = metrics["groups/num_groups"]!;
      expect(metrics["groups/dropped_no_signal"]! + metrics["groups/dropped_surplus"]!).toBe(groups - 4);
      expect(metrics["batch/draws"]).toBe(groups / 4);
    }
    expect(history.some(({ metrics }) => metrics["batch/draws"]! > 1)).toBe(true);
  });

  it("continues without an update if no draw has a signal", async () => {
    const hopeless = toy({ rllm: { dynamic_sampling: { enable: true, max_rounds: 2 } } }, () => 1);
    const { history } = await run(hopeless);
    expect(history).toHaveLength(6);
    expect(history[0]!.metrics).toMatchObject({ "batch/draws": 2, "batch/num_sequences": 0, "reward/mean": 1 });
  });

  it.each([
    ["rejection sampling", toy(rejection({ min_partial_solve_tasks: 3 }), allOrNothing)],
    ["dynamic sampling", toy(dynamic)],
    ["running normalization", toy({ rllm: { reward: { running_norm: true, running_norm_minus_mean: true } } })],
    ["greedy replies to compare with", toy({ rllm: { algorithm: { adv_estimator: "remax" } } })],
  ])("with %s gives the same run regardless of the operation at which it is killed", async (_, experiment) => {
    const whole = newFolder();
    await run(experiment, openToy(), whole);
    const operations = countOperations();
    await run(experiment, operations.toy);
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: operations.count() }), async (instant) => {
        const folder = newFolder();
        await run(experiment, countOperations(instant).toy, folder).catch((error) => {
          expect(error).toMatchObject({ message: "killed" });
        });
        await run(experiment, openToy(), folder);
        expect(metricLines(folder)).toEqual(metricLines(whole));
      }),
      { numRuns: nightly ? 20 : 3, seed: 1 },
    );
  });
});

describe("credit", () => {
  it.each<[string, ConfigInput, Record<string, unknown>]>(
    [
      [
        "a discount, whitening and a bound",
        { algorithm: { gamma: 0.9, advantages_norm: true, advantage_clip: 0.5 } },
        { "advantage/clip_fraction": expect.any(Number) },
      ],
      [
        "normalized rewards, bounded",
        { reward: { running_norm: true, clip: 0.5 } },
        { "reward/clip_fraction": expect.any(Number), "reward/running_std": expect.any(Number) },
      ],
      [
        "an overlong penalty",
        { reward: { overlong: { enable: true, buffer_len: 2, penalty_factor: 0.1 } } },
        { "reward/overlong_penalty": expect.any(Number) },
      ],
      [
        "uniform groups left out",
        { rollout: { n: 2 }, rejection_sample: { filter_uniform_groups: true } },
        { "groups/dropped_zero_adv": expect.any(Number) },
      ],
      [
        "verl's constants",
        { algorithm: { adv_estimator: "reinforce_plus_plus_baseline", estimator_preset: "verl" } },
        {},
      ],
      [
        "an estimator for a role",
        { algorithm: { adv_estimator: "cpgd", estimator_map: { agent: ["rloo", "cispo"] } } },
        {},
      ],
    ].map(([name, rllm, metrics]) => [name as string, { rllm } as ConfigInput, metrics as Record<string, unknown>]),
  )("learns with %s", async (_, config, first) => {
    expect(await learns(toy(config))).toMatchObject(first);
  });

  it("learns by a custom estimator that the configuration names", async () => {
    const experiment = toy({ rllm: { algorithm: { adv_estimator: "above_half" } } });
    await learns({
      ...experiment,
      estimators: { above_half: (groups) => groups.map(({ rewards }) => rewards.map((reward) => reward - 0.5)) },
    });
  });

  it.each(["broadcast", "per_step"] as const)("learns with the stepwise mode %s", async (mode) => {
    const stepwise: ConfigInput = {
      rllm: {
        workflow: { workflow_args: { gamma: 0.5 } },
        stepwise_advantage: { enable: true, mode, normalize_by_steps: mode === "broadcast" },
      },
    };
    const first = await learns(toy(stepwise, graded, twoTurns));
    expect(first["batch/steps_per_traj/mean"]).toBe(2);
    if (mode === "per_step") expect(first["groups/lone_steps"]).toBe(0);
  });

  it("learns only from the advantages that the workflow gives itself", async () => {
    const own: Workflow<ToyRow> = async (_task, { model }) => {
      const { text, tokens } = await model.chat([{ role: "user", content: "b" }]);
      const letters = [...text];
      // One advantage for each letter; the end of the reply has no letter and no advantage.
      const advantage = Array.from(tokens, (_, index) =>
        index >= letters.length ? 0 : letters[index] === "a" ? 1 : -1,
      );
      return { reward: graded(text), advantages: { agent: [advantage] } };
    };
    const precomputed: ConfigInput = { rllm: { algorithm: { use_precomputed_advantage: true } } };
    const first = await learns(toy(precomputed, graded, own));
    // No estimator changes them, such as one that whitens the tokens of a batch.
    const whitening = { ...precomputed.rllm?.algorithm, adv_estimator: "reinforce_plus_plus" };
    const same = await learns(toy({ rllm: { algorithm: whitening } }, graded, own));
    expect(same["advantage/agent/mean"]).toBe(first["advantage/agent/mean"]);
    expect(same["actor/pg_loss"]).toBe(first["actor/pg_loss"]);
    await expect(run(toy(precomputed))).rejects.toThrow("no rollout of this step returned advantages");
  });

  it("leaves out episodes, groups and sequences as configured, and counts them by cause", async () => {
    const filtered: ConfigInput = {
      rllm: {
        compact_filtering: { enable: true, mask_max_response_length_exceeded: true },
        mask_truncated_samples: true,
      },
    };
    const { history } = await run(toy(filtered));
    const { metrics } = history[0]!;
    const cut = metrics["groups/dropped_trajs/masked_max_response_length_exceeded"]!;
    expect(cut).toBeGreaterThan(0);
    expect(metrics["groups/num_trajs_after_filter"]).toBe(16 - cut);
    const masked = await run(toy({ rllm: { mask_truncated_samples: true, agent: { overlong_filter: true } } }));
    expect(masked.history[0]!.metrics["batch/dropped_sequences/truncated"]).toBe(cut);
    expect(masked.history[0]!.metrics["groups/num_trajs_after_filter"]).toBe(16);
  });

  it.each<[string, ConfigInput["rllm"], RegExp]>([
    [
      "steps normalized twice",
      { stepwise_advantage: { enable: true, mode: "per_step", normalize_by_steps: true } },
      /each step has its own advantage/,
    ],
    [
      "steps with one advantage for the trajectory",
      { stepwise_advantage: { enable: true, mode: "per_step" }, reward: { clip: 1 } },
      /one advantage for each trajectory/,
    ],
    [
      "an unknown estimator for a role",
      { algorithm: { estimator_map: { agent: "gropo" } } },
      /the name gropo is neither built in nor registered; did you mean grpo/,
    ],
  ])("refuses %s before the first step", async (_, rllm, message) => {
    const refused = run(toy({ rllm: rllm! }));
    await expect(refused).rejects.toThrow(message);
    await expect(refused).rejects.toThrow(UserError);
  });
});

it("drops groups whose advantages are all 0, with their advantages", () => {
  const groups = ["a", "b", "c"].map((task) => rewardGroup(`${task}:solver`, [1, 0]));
  const dropped = dropUniformGroups(groups, [
    [0, 0],
    [1, -1],
    [1e-9, [0, [0]]],
  ]);
  expect(dropped.groups.map(({ id }) => id)).toEqual(["b:solver"]);
  expect(dropped.advantages).toEqual([[1, -1]]);
  expect(dropped.counts).toEqual({ "groups/dropped_zero_adv": 2 });
  expect(dropUniformGroups([], []).groups).toEqual([]);
});
