/** Each agent, with its SDK, trains a tiny model, which has to find out that it should look up the price before it answers. */
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { test } from "vitest";
import { nightly } from "../../src/nightly.fixture.ts";
import { call, expectRise, type Load, prices, totals } from "./train.fixture.ts";

const objects = totals.map((text) => JSON.stringify({ total: Number(text) || 0 }));

const light: [name: string, load: Load, replies: string[]][] = [
  ["ai-sdk", () => import("./ai-sdk.ts"), [...prices("price"), ...objects]],
  ["openai-agents", () => import("./openai-agents.ts"), [...prices("price"), ...totals]],
  ["mastra", () => import("./mastra.ts"), [...prices("price"), ...totals]],
  ["langgraph", () => import("./langgraph.ts"), [...prices("price"), ...totals]],
];
test.each(light)("%s: the reward rises", expectRise);

/** With their programs; programs.test.ts has stand-ins for these. */
const heavy: [name: string, load: Load, replies: string[]][] = [
  ["claude-agent", () => import("./claude-agent.ts"), [...prices("mcp__shop__price"), ...totals]],
  ["codex", () => import("./codex.ts"), [call("exec_command", { cmd: "cat prices.json" }), ...totals]],
];
test.skipIf(!nightly).each(heavy)("%s: the reward rises", { timeout: 600_000 }, expectRise);

test("the types are right", () => {
  const compiler = fileURLToPath(new URL("../../node_modules/typescript/bin/tsc", import.meta.url));
  execFileSync(process.execPath, [compiler, "-p", import.meta.dirname], { stdio: "pipe", encoding: "utf8" });
});
