import { runWorkflow } from "hone-rl/testing";
import { expect, test } from "vitest";
import { workflow } from "./train.ts";

test.each([
  ["8", 1],
  ["The larger one is 8.", 1],
  ["3", 0],
  ["no idea", 0],
])("the reply %s gets %d", async (reply, reward) => {
  const [episode] = await runWorkflow({ workflow, rows: [{ left: 3, right: 8 }], reply: () => reply });
  expect(episode?.trajectories[0]?.reward).toBe(reward);
});
