import { expect, test } from "vitest";
import { rewardGroup, sampleStep } from "../../trajectories/sample-episodes.fixture.ts";
import type { TrajectoryGroup } from "../../trajectories/types.ts";
import { estimatorPresets } from "../estimators/estimator.ts";
import type { AdvantageOptions } from "./estimate-advantages.ts";
import { estimateStepAdvantages, shareAmongSteps } from "./step-advantages.ts";

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
