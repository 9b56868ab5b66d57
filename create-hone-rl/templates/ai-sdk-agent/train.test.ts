import { runWorkflow } from "hone-rl/testing";
import { expect, test } from "vitest";
import { workflow } from "./train.ts";

const rows = [{ item: "book", answer: 12 }];

test("the agent calls its tool, sees the price, and is rewarded for the right answer", async () => {
  const call = { toolCalls: [{ name: "price", arguments: { item: "book" } }] };
  const reply = (messages: readonly { role: string }[]) => (messages.at(-1)?.role === "tool" ? "12" : call);
  const [episode] = await runWorkflow({ workflow, rows, reply });
  const [agent] = episode!.trajectories;
  expect(agent?.reward).toBe(1);
  expect(agent?.steps[1]?.messages.at(-1)).toMatchObject({ role: "tool", content: "12" });
});

test("a wrong answer gets 0", async () => {
  const [episode] = await runWorkflow({ workflow, rows, reply: () => "35" });
  expect(episode?.trajectories[0]?.reward).toBe(0);
});
