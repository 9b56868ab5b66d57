import { runWorkflow } from "hone-rl/testing";
import { expect, test } from "vitest";
import { workflow } from "./train.ts";

test.each([
  ["8", 1],
  ["3", 0],
])("the agent's server asks the model at the address that it is given; the reply %s gets %d", async (reply, reward) => {
  const [episode] = await runWorkflow({ workflow, rows: [{ left: 3, right: 8 }], reply: () => reply });
  const [agent] = episode!.trajectories;
  expect(agent?.reward).toBe(reward);
  expect(agent?.steps[0]?.messages.at(-1)?.content).toContain("3 or 8");
});
