import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { groupMetrics } from "../trajectories/group-metrics.ts";
import { rewardGroup } from "../trajectories/sample-episodes.fixture.ts";
import { estimateAdvantages } from "./advantages.ts";
import { type EstimatorOptions, estimatorPresets } from "./estimators/estimator.ts";
import { grpo } from "./estimators/grpo.ts";
import { differences, readVectors, type Value } from "./vectors/read-vectors.fixture.ts";

const { rllm, lightrft, verl, trl } = estimatorPresets;

describe("recorded advantages", () => {
  type Grouped = { rewards_by_group: number[][] };
  const grouped: [string, (std: boolean) => EstimatorOptions][] = [
    ["rllm/adv/grpo", (std) => ({ ...rllm, std })],
    ["tinker/adv", () => ({ ...trl, std: false })],
  ];
  for (const [prefix, options] of grouped) {
    type Params = { norm_adv_by_std_in_grpo: boolean };
    test.each(readVectors<Grouped, Params, { advantages_by_group: number[][] }>("advantages", prefix))(
      "$name",
      ({ inputs, params, outputs, tol }) => {
        const got = grpo(inputs.rewards_by_group, options(params.norm_adv_by_std_in_grpo));
        expect(differences(got, outputs.advantages_by_group, tol)).toEqual([]);
      },
    );
  }

  type Tokens = { token_level_rewards: number[][]; response_mask: number[][]; index: string[] };
  type StdParams = { norm_adv_by_std_in_grpo?: boolean };
  test.each([
    ...readVectors<Tokens, StdParams, { advantages: number[][] }>("advantages", "verl/adv/grpo"),
    ...readVectors<Tokens, StdParams, { advantages: number[][] }>("advantages", "skyrl/adv"),
  ])("$name", ({ inputs, params, outputs, tol }) => {
    const scores = inputs.token_level_rewards.map((row) => row.reduce((total, reward) => total + reward, 0));
    const names = [...new Set(inputs.index)];
    const rows = names.map((name) => [...scores.keys()].filter((row) => inputs.index[row] === name));
    const std = params.norm_adv_by_std_in_grpo ?? true;
    const byGroup = grpo(
      rows.map((members) => members.map((row) => scores[row]!)),
      { ...verl, std },
    );
    const got = scores.map((_, row) => {
      const group = names.indexOf(inputs.index[row]!);
      return inputs.response_mask[row]!.map((mask) => mask * byGroup[group]![rows[group]!.indexOf(row)]!);
    });
    expect(differences(got, outputs.advantages, tol)).toEqual([]);
  });

  test.each(
    readVectors<{ rewards: number[] }, { n_samples_per_prompt: number }, { rewards: Value[] }>(
      "advantages",
      "lightrft/preprocess/group_norm",
    ),
  )("$name", ({ name, inputs, params, outputs, tol }) => {
    const size = params.n_samples_per_prompt;
    const groups = Array.from({ length: inputs.rewards.length / size }, (_, group) =>
      inputs.rewards.slice(group * size, (group + 1) * size),
    );
    const got = grpo(groups, lightrft).flat();
    // LightRFT divides 0 by 0 for a group of one; here it has no advantage.
    const want = name.includes("/single/") ? outputs.rewards.map(() => 0) : outputs.rewards;
    expect(differences(got, want, tol)).toEqual([]);
  });

  type PerFunction = { rewards_per_func: Value[][] };
  type TrlParams = { scale_rewards: string; reward_weights: number[]; num_generations: number };
  test.each(readVectors<PerFunction, TrlParams, { advantages: number[] }>("advantages", "trl/adv"))(
    "$name",
    ({ inputs, params, outputs, tol }) => {
      const known = (value: Value) => typeof value === "number";
      const rewards = inputs.rewards_per_func.map((values) =>
        values.some(known)
          ? values.reduce<number>(
              (sum, value, index) => sum + (known(value) ? value * params.reward_weights[index]! : 0),
              0,
            )
          : null,
      );
      // Rows without any reward are left out of their group, as grouping does with unknown rewards.
      const size = params.num_generations;
      const rows = [...rewards.keys()].filter((row) => rewards[row] !== null);
      const groups = Array.from({ length: rewards.length / size }, (_, group) =>
        rows.filter((row) => Math.floor(row / size) === group),
      );
      const estimated = grpo(
        groups.map((members) => members.map((row) => rewards[row]!)),
        { ...trl, std: params.scale_rewards === "group" },
      );
      const got = rewards.map(() => 0);
      groups.forEach((members, group) => {
        members.forEach((row, member) => {
          got[row] = estimated[group]![member]!;
        });
      });
      expect(differences(got, outputs.advantages, tol)).toEqual([]);
    },
  );

  type Collected = { groups: { group_id: string; trajectories: { reward: number }[] }[] };
  type CollectOutputs = { step_advantages: number[][][]; metrics: Record<string, number> };
  test.each(readVectors<Collected, Record<string, never>, CollectOutputs>("advantages", "rllm/collect"))(
    "$name with its metrics",
    ({ inputs, outputs, tol }) => {
      const groups = inputs.groups.map(({ group_id, trajectories }) =>
        rewardGroup(
          group_id,
          trajectories.map(({ reward }) => reward),
        ),
      );
      const advantages = estimateAdvantages(groups, { ...rllm, estimator: "grpo" });
      const wanted = outputs.step_advantages.map((group) => group.map((steps) => steps[0]!));
      expect(differences(advantages, wanted, tol)).toEqual([]);
      const metrics = groupMetrics(groups, advantages);
      expect(differences(metrics, outputs.metrics, tol)).toEqual([]);
      expect(Object.keys(metrics).sort()).toEqual(Object.keys(outputs.metrics).sort());
    },
  );
});

test("equal rewards give exactly zero, whatever rounding does to their mean", () => {
  const reward = fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e6, max: 1e6 });
  fc.assert(
    fc.property(
      reward,
      fc.integer({ min: 2, max: 50 }),
      fc.constantFrom(rllm, lightrft, verl, trl),
      (value, size, options) => {
        expect(grpo([Array<number>(size).fill(value)], options)[0]!.every((advantage) => advantage === 0)).toBe(true);
      },
    ),
  );
});

test.each([
  [{ ...rllm }, 0.5 / (1 + 1e-6)],
  [{ ...rllm, std: false }, 0.5],
  [{ ...lightrft }, 0],
  [{ ...trl }, 0],
  [{ ...trl, std: false }, 0],
])("a group of one under %o", (options, wanted) => {
  expect(grpo([[0.5]], options)).toEqual([[wanted]]);
});

test("roles are estimated apart and come back in the order of the groups; no groups, no advantages", () => {
  const groups = [rewardGroup("a:solver", [0, 1]), rewardGroup("a:judge", [5, 5]), rewardGroup("b:solver", [1, 1, 0])];
  const advantages = estimateAdvantages(groups, { ...rllm, std: false, estimator: "grpo" });
  expect(advantages[0]).toEqual([-0.5, 0.5]);
  expect(advantages[1]).toEqual([0, 0]);
  expect(advantages[2]![2]).toBeCloseTo(-2 / 3);
  expect(estimateAdvantages([], { ...rllm, estimator: "grpo" })).toEqual([]);
  expect(groupMetrics([], [])).toEqual({});
});
