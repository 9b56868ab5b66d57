import { runWorkflow } from "hone-rl/testing";
import { expect, test } from "vitest";
import experiment from "./train.ts";

test.each([
  ["green", 1],
  ["Green", 0.94],
  ["red", 0.15],
])("the reply %s to the first task gets %d", async (reply, reward) => {
  const { row } = experiment.train.task(0);
  const [episode] = await runWorkflow({ workflow: experiment.workflow!, rows: [row], reply: () => reply });
  expect(episode?.trajectories[0]?.reward).toBeCloseTo(reward, 6);
  expect(Object.keys(episode!.metrics)).toEqual(expect.arrayContaining(["reward/exact", "reward/close"]));
});
