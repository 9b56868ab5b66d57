/** Each agent, with its SDK, trains a tiny model, which has to find out that it should look up the price before it answers. */
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { nightly } from "../../src/nightly.fixture.ts";
import { call, type Load, prices, rewardsOf, totals } from "./train.fixture.ts";

const objects = totals.map((text) => JSON.stringify({ total: Number(text) || 0 }));

const light: [name: string, load: Load, replies: string[]][] = [
  ["ai-sdk", () => import("./ai-sdk.ts"), [...prices("price"), ...objects]],
  ["openai-agents", () => import("./openai-agents.ts"), [...prices("price"), ...totals]],
  ["mastra", () => import("./mastra.ts"), [...prices("price"), ...totals]],
  ["langgraph", () => import("./langgraph.ts"), [...prices("price"), ...totals]],
];
test.each(light)("%s: the reward rises", async (name, load, replies) => {
  const rewards = await rewardsOf(name, load, replies, 10);
  const late = rewards.slice(-3).reduce((sum, reward) => sum + reward / 3, 0);
  expect(late - rewards[0]!, rewards.join(" ")).toBeGreaterThan(0.25);
});

/** They start a program of 400 MB for each rollout. */
const heavy: [name: string, load: Load, replies: string[]][] = [
  ["claude-agent", () => import("./claude-agent.ts"), [...prices("mcp__shop__price"), ...totals]],
  ["codex", () => import("./codex.ts"), [call("exec_command", { cmd: "cat prices.json" }), ...totals]],
];
test.skipIf(!nightly).each(heavy)("%s trains four steps", { timeout: 600_000 }, async (name, load, replies) => {
  const rewards = await rewardsOf(name, load, replies, 4);
  expect(rewards.length).toBe(4);
  expect(Math.max(...rewards), rewards.join(" ")).toBeGreaterThan(0);
});

test("the types are right", () => {
  const compiler = fileURLToPath(new URL("../../node_modules/typescript/bin/tsc", import.meta.url));
  execFileSync(process.execPath, [compiler, "-p", import.meta.dirname], { stdio: "pipe", encoding: "utf8" });
});
