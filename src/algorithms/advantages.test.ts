import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { advantageMetrics, rewardMetrics } from "../trainer/credit.ts";
import { rewardGroup, sampleStep } from "../trajectories/sample-episodes.fixture.ts";
import type { TrajectoryGroup } from "../trajectories/types.ts";
import {
  type AdvantageOptions,
  clipSymmetric,
  criticAdvantages,
  discountAdvantages,
  estimateAdvantages,
  estimateStepAdvantages,
  noMoments,
  normalizeAdvantages,
  normalizeRewards,
  overlongPenalty,
  type RewardGroup,
  runningDeviation,
  sequencesThatNeed,
  shareAmongSteps,
  type TokenAdvantageOptions,
  withRewards,
} from "./advantages.ts";
import { type EstimatorOptions, type EstimatorSpec, estimatorPresets, estimators, tokenRewards } from "./estimators.ts";
import { penalizeAdvantages } from "./kl.ts";

describe("critic advantages", () => {
  test("the last token of a judged sequence gets its reward, each token pays its penalty; others keep their advantages", () => {
    const options = { ...estimatorPresets.rllm, estimator: "grpo", byRole: { solver: "gae" } };
    const judged = sequencesThatNeed("values", ["solver", "judge", "solver"], options);
    expect([...judged]).toEqual([0, 2]);
    const batch = { advantages: Float32Array.of(9, 9, 7), offsets: Int32Array.of(0, 2, 3, 3) };
    const given = { rewards: Float32Array.of(1, 1, 7), values: Float32Array.of(0.5, 0.25, 0) };
    const plain = criticAdvantages(batch, judged, given, { gamma: 1, lambda: 0.5 });
    // delta = [0.25 - 0.5, 1 - 0.25] = [-0.25, 0.75]
    expect([...plain.advantages]).toEqual([0.125, 0.75, 7]);
    expect([...plain.returns]).toEqual([0.625, 1, 0]);
    const penalties = Float32Array.of(0.5, 0.25, 0);
    const paid = criticAdvantages(batch, judged, { ...given, penalties }, { gamma: 1, lambda: 0.5 });
    // delta = [-0.75, 0.5]
    expect([...paid.advantages]).toEqual([-0.5, 0.5, 7]);
  });
});

describe("change rewards", () => {
  const rewards = fc.array(fc.integer({ min: -9, max: 9 }), { maxLength: 8 });

  test("moments of parts are the moments of the whole, and survive JSON", () => {
    fc.assert(
      fc.property(rewards, rewards, (first, second) => {
        const whole = withRewards(noMoments, [...first, ...second]);
        const saved = JSON.parse(JSON.stringify(withRewards(noMoments, first))) as typeof noMoments;
        const parts = withRewards(saved, second);
        expect(parts.count).toBe(whole.count);
        expect(parts.mean).toBeCloseTo(whole.mean, 9);
        expect(parts.squares).toBeCloseTo(whole.squares, 9);
      }),
    );
  });

  test("rewards are divided by the deviation of all rewards so far, never by 0", () => {
    expect(normalizeRewards(noMoments, [], { center: true }).rewards).toEqual([]);
    expect(normalizeRewards(noMoments, [3], { center: false }).rewards).toEqual([3]);
    expect(normalizeRewards(noMoments, [3, 3], { center: true }).rewards).toEqual([0, 0]);
    const { rewards: first, moments } = normalizeRewards(noMoments, [1, 3], { center: true });
    expect(first.map((reward) => reward * Math.SQRT2)).toEqual([-1, 1].map((value) => expect.closeTo(value)));
    expect(runningDeviation(moments)).toBeCloseTo(Math.SQRT2);
    const { rewards: second } = normalizeRewards(moments, [2], { center: true });
    expect(second).toEqual([0]);
  });

  test("values are clipped on both sides and the clipped share is returned; a bound of 0 is ignored", () => {
    expect(clipSymmetric([-2, -1, 0.5, 3], 1)).toEqual({ values: [-1, -1, 0.5, 1], fraction: 0.5 });
    expect(clipSymmetric([-2, 3], 0)).toEqual({ values: [-2, 3], fraction: 0 });
    expect(clipSymmetric([], 1)).toEqual({ values: [], fraction: 0 });
    expect(clipSymmetric(Float32Array.of(5), 2).values).toEqual(Float32Array.of(2));
  });

  test("the overlong penalty grows over the buffer, from 0 to its factor at the limit", () => {
    const penalty = { maxLength: 10, buffer: 4, factor: 2 };
    expect([0, 6, 7, 8, 10].map((length) => overlongPenalty(length, penalty))).toEqual([0, 0, -0.5, -1, -2]);
    expect(overlongPenalty(10, { ...penalty, buffer: 0 })).toBe(0);
  });

  test("a reply's reward is at its last token; the KL of each token is subtracted, and never added", () => {
    expect([...tokenRewards(3, 1, [0.5, 0, 2], 0.1)]).toEqual([-0.05, 0, 0.8]);
    expect([...tokenRewards(2, 1, [1, 1], -1)]).toEqual([0, 1]);
    expect([...tokenRewards(0, 1)]).toEqual([]);
  });
});

describe("step advantages", () => {
  const options: AdvantageOptions = { ...estimatorPresets.rllm, std: false, estimator: "grpo" };

  function groupOf(id: string, ...members: { reward: number; steps: (number | null)[] }[]): TrajectoryGroup {
    const group = rewardGroup(
      id,
      members.map(({ reward }) => reward),
    );
    members.forEach(({ steps }, index) => {
      group.members[index]!.trajectory.steps = steps.map((reward) => sampleStep([1], [2], { reward }));
    });
    return group;
  }

  test("the same step of each rollout is compared, by its own reward", () => {
    const group = groupOf("a:solver", { reward: 9, steps: [1, 0] }, { reward: 9, steps: [0, 1] });
    expect(estimateStepAdvantages([group], options, 0).advantages).toEqual([
      [
        [0.5, -0.5],
        [-0.5, 0.5],
      ],
    ]);
  });

  test("a single reward per trajectory counts for its last step and, discounted, for earlier steps", () => {
    const group = groupOf("a:solver", { reward: 1, steps: [null, null] }, { reward: 0, steps: [null, null] });
    expect(estimateStepAdvantages([group], options, 0).advantages[0]).toEqual([
      [0, 0.5],
      [0, -0.5],
    ]);
    expect(estimateStepAdvantages([group], options, 0.5).advantages[0]).toEqual([
      [0.25, 0.5],
      [-0.25, -0.5],
    ]);
  });

  test("steps without a comparison get the advantage 0 and are counted", () => {
    const group = groupOf(
      "a:solver",
      { reward: 1, steps: [1, 1] },
      { reward: 0, steps: [0] },
      { reward: 1, steps: [1, null] },
    );
    expect(estimateStepAdvantages([group], options, 0)).toEqual({
      advantages: [[[0.5, 0], [-0.5], [0, 0]]],
      counts: { "groups/unknown_step_rewards": 1, "groups/lone_steps": 1 },
    });
    expect(estimateStepAdvantages([], options, 0).advantages).toEqual([]);
  });

  test("a trajectory's advantage is shared equally by its steps", () => {
    const group = groupOf("a:solver", { reward: 1, steps: [null, null] }, { reward: 0, steps: [null] });
    expect(shareAmongSteps([group], [[1, -1]])).toEqual([[0.5, -1]]);
  });
});

describe("token advantages", () => {
  const options: TokenAdvantageOptions = {
    ...estimatorPresets.rllm,
    ...{ estimator: "grpo", gamma: 1, whiten: false, clip: 0 },
  };
  const batch = {
    advantages: Float32Array.of(1, 1, 1, -2, -2, 4),
    offsets: Int32Array.of(0, 3, 5, 5, 6),
    roles: ["solver", "solver", "judge", "judge"],
  };
  const sum = (values: Float32Array) => values.reduce((total, value) => total + value, 0);

  test("without options, advantages do not change", () => {
    const shaped = normalizeAdvantages(batch, options);
    expect(shaped).toEqual({ advantages: batch.advantages, metrics: {} });
  });

  test("a discount does not change the last token of each sequence", () => {
    expect([...discountAdvantages(batch, 0.5)]).toEqual([0.25, 0.5, 1, -1, -2, 4]);
    expect(discountAdvantages(batch, 1)).toEqual(batch.advantages);
  });

  test("an estimator's whitening covers only the tokens of its roles", () => {
    const { advantages } = normalizeAdvantages(batch, { ...options, byRole: { solver: "reinforce_plus_plus" } });
    expect(sum(advantages.slice(0, 5))).toBeCloseTo(0, 6);
    expect(advantages[5]).toBe(4);
    const baseline = { ...options, estimator: "reinforce_plus_plus_baseline" };
    expect(normalizeAdvantages(batch, baseline).advantages).toEqual(batch.advantages);
    const byVerl = normalizeAdvantages(batch, { ...baseline, ...estimatorPresets.verl }).advantages;
    expect(sum(byVerl.slice(0, 5))).toBeCloseTo(0, 6);
    expect(byVerl[5]).toBe(0);
  });

  test("a KL in the reward is part of the returns before whitening, as in verl", () => {
    const penalties = Float32Array.of(0.1, 0.2, 0.3, 0, -0.4, 0.5);
    const gamma = 0.5;
    const penalised = penalizeAdvantages(discountAdvantages(batch, gamma), penalties, batch.offsets, { gamma });
    // r_t = score at the last token - penalty_t, G_t = r_t + gamma G_{t+1}, by hand.
    const returns = [0.25 - 0.1 - 0.1 - 0.075, 0.5 - 0.2 - 0.15, 1 - 0.3, -1 + 0.2, -2 + 0.4, 4 - 0.5];
    returns.forEach((value, token) => {
      expect(penalised[token]).toBeCloseTo(value, 6);
    });
    const everyone = { ...options, estimator: "reinforce_plus_plus" };
    const roles = batch.roles.map(() => "solver");
    const { advantages } = normalizeAdvantages({ ...batch, roles, advantages: penalised }, everyone);
    const mean = returns.reduce((total, value) => total + value, 0) / 6;
    const deviation = Math.sqrt(returns.reduce((total, value) => total + (value - mean) ** 2, 0) / 5);
    returns.forEach((value, token) => {
      expect(advantages[token]).toBeCloseTo((value - mean) / deviation, 5);
    });
  });

  test("all tokens are whitened, then bounded", () => {
    const { advantages } = normalizeAdvantages(batch, { ...options, whiten: true });
    expect(sum(advantages)).toBeCloseTo(0, 6);
    const bounded = normalizeAdvantages(batch, { ...options, clip: 2 });
    expect([...bounded.advantages]).toEqual([1, 1, 1, -2, -2, 2]);
    expect(bounded.metrics["advantage/clip_fraction"]).toBeCloseTo(1 / 6);
  });

  test("no tokens, one token and equal tokens give no NaN", () => {
    const every = { ...options, estimator: "reinforce_plus_plus", whiten: true, clip: 1 };
    const empty = { advantages: new Float32Array(), offsets: Int32Array.of(0), roles: [] };
    expect(normalizeAdvantages(empty, every).advantages).toHaveLength(0);
    expect(discountAdvantages(empty, 0.5)).toHaveLength(0);
    const one = { advantages: Float32Array.of(3), offsets: Int32Array.of(0, 1, 1), roles: ["a", "a"] };
    expect([...normalizeAdvantages(one, every).advantages]).toEqual([0]);
    const equal = { advantages: Float32Array.of(0.1, 0.1), offsets: Int32Array.of(0, 1, 2), roles: ["a", "a"] };
    expect([...normalizeAdvantages(equal, every).advantages]).toEqual([0, 0]);
  });
});

describe("estimate advantages", () => {
  const presets = Object.values(estimatorPresets);
  const specs = Object.entries(estimators) as [string, EstimatorSpec][];
  const grpo = (rewards: number[][], options: EstimatorOptions) =>
    estimators.grpo.compare(
      rewards.map((own) => ({ rewards: own })),
      options,
    );

  const reward = fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e100, max: 1e100 });
  const tame = fc.integer({ min: -8, max: 8 }).map((value) => value / 4);
  const groupsOf = (rewards: fc.Arbitrary<number>): fc.Arbitrary<RewardGroup[]> =>
    fc.array(
      fc
        .array(fc.record({ reward: rewards, length: fc.integer({ min: 0, max: 9 }) }), { maxLength: 6 })
        .map((members) => ({
          rewards: members.map((member) => member.reward),
          lengths: members.map(({ length }) => length),
          baselines: members.map(() => 0.5),
        })),
      { maxLength: 5 },
    );

  describe.each(specs)("%s", (_, { compare }) => {
    test("gives every trajectory a finite advantage, regardless of the rewards", () => {
      const any = fc.oneof(groupsOf(reward), groupsOf(tame), groupsOf(fc.constantFrom(0, 1, 1e-300, 0.1)));
      fc.assert(
        fc.property(any, fc.constantFrom(...presets), fc.boolean(), (groups, options, std) => {
          const figures = compare(groups, { ...options, std });
          expect(figures.map(({ length }) => length)).toEqual(groups.map(({ rewards }) => rewards.length));
          expect(figures.flat().every((figure) => Number.isFinite(figure))).toBe(true);
        }),
      );
    });

    test("permuting a group permutes its advantages", () => {
      fc.assert(
        fc.property(
          // All rewards differ, because pass@k breaks ties by position.
          fc.uniqueArray(tame, { minLength: 2, maxLength: 6 }),
          fc.array(fc.nat(), { minLength: 6, maxLength: 6 }),
          fc.constantFrom(...presets),
          (rewards, keys, options) => {
            const lengths = rewards.map((_, index) => index + 1);
            const order = [...rewards.keys()].sort((a, b) => keys[a]! - keys[b]!);
            const pick = (values: readonly number[]) => order.map((index) => values[index]!);
            const other = { rewards: [0.25, 1], lengths: [1, 2], baselines: [0.5] };
            const [straight] = compare([{ rewards, lengths, baselines: [0.5] }, other], options);
            const [permuted] = compare(
              [{ rewards: pick(rewards), lengths: pick(lengths), baselines: [0.5] }, other],
              options,
            );
            pick(straight!).forEach((value, index) => {
              expect(permuted![index]).toBeCloseTo(value, 9);
            });
          },
        ),
      );
    });
  });

  test("against a mean, equal rewards give exactly zero despite rounding", () => {
    const against = specs.filter(([name]) => !/^(reinforce|reinforce_plus_plus|gae|remax|optimal_.*)$/.test(name));
    fc.assert(
      fc.property(
        fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e6, max: 1e6 }),
        fc.integer({ min: 2, max: 50 }),
        fc.constantFrom(...presets),
        (value, size, options) => {
          const rewards = Array<number>(size).fill(value);
          for (const [, { compare }] of against) {
            const [figures] = compare([{ rewards, lengths: rewards.map((_, index) => index + 1) }], options);
            expect(figures!.every((figure) => figure === 0)).toBe(true);
          }
        },
      ),
    );
  });

  test.each([
    [{ ...estimatorPresets.rllm }, 0.5 / (1 + 1e-6)],
    [{ ...estimatorPresets.rllm, std: false }, 0.5],
    [{ ...estimatorPresets.lightrft }, 0],
    [{ ...estimatorPresets.trl }, 0],
    [{ ...estimatorPresets.trl, std: false }, 0],
  ])("a group of one under %o", (options, wanted) => {
    expect(grpo([[0.5]], options)).toEqual([[wanted]]);
  });

  const options: AdvantageOptions = { ...estimatorPresets.rllm, std: false, estimator: "grpo" };

  test("each role is estimated separately, by its own estimator; results are in the order of the groups", () => {
    const groups = [
      rewardGroup("a:solver", [0, 1]),
      rewardGroup("a:judge", [5, 5]),
      rewardGroup("b:solver", [1, 1, 0]),
    ];
    const advantages = estimateAdvantages(groups, options);
    expect(advantages[0]).toEqual([-0.5, 0.5]);
    expect(advantages[1]).toEqual([0, 0]);
    expect(advantages[2]![2]).toBeCloseTo(-2 / 3);
    expect(estimateAdvantages(groups, { ...options, byRole: { judge: "reinforce" } })[1]).toEqual([5, 5]);
    expect(estimateAdvantages([], options)).toEqual([]);
    expect({ ...rewardMetrics([]), ...advantageMetrics([], []) }).toEqual({});
  });

  test("a custom estimator is found by its name and receives the whole trajectories", () => {
    const shortest = (groups: readonly RewardGroup[]) =>
      groups.map(({ rewards, lengths, members }) =>
        rewards.map((own, index) => own / lengths![index]! + members![index]!.trajectory.steps.length),
      );
    const groups = [rewardGroup("a:solver", [2, 4])];
    expect(estimateAdvantages(groups, { ...options, estimator: "shortest", custom: { shortest } })).toEqual([[3, 5]]);
    const custom = { short: () => [[1]], broken: () => [[1, Number.NaN]] };
    expect(() => estimateAdvantages(groups, { ...options, estimator: "short", custom })).toThrow(
      /role solver returned \[1\] for group a:solver, which needs 2 finite numbers/,
    );
    expect(() => estimateAdvantages(groups, { ...options, estimator: "broken", custom })).toThrow(UserError);
    expect(() => estimateAdvantages(groups, { ...options, estimator: "gropo" })).toThrow(
      "advantage estimator gropo does not exist",
    );
  });
});
