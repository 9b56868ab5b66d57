import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UserError } from "../../errors.ts";
import { advantageMetrics, rewardMetrics } from "../../trajectories/metrics.ts";
import { rewardGroup } from "../../trajectories/sample-episodes.fixture.ts";
import { type EstimatorOptions, estimatorPresets } from "../estimators/estimator.ts";
import { type EstimatorSpec, estimators } from "../estimators/index.ts";
import { type AdvantageOptions, estimateAdvantages, type RewardGroup } from "./estimate-advantages.ts";

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
  const groups = [rewardGroup("a:solver", [0, 1]), rewardGroup("a:judge", [5, 5]), rewardGroup("b:solver", [1, 1, 0])];
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
