/** The SDKs that start a program, with a stand-in for the program. `npm test -- nightly` runs the programs (agents.test.ts). */
import { fileURLToPath } from "node:url";
import { test, vi } from "vitest";
import { call, expectRise, prices, totals } from "./train.fixture.ts";

const program = (name: string) => fileURLToPath(new URL(`${name}.fixture.mjs`, import.meta.url));

vi.mock(import("@anthropic-ai/claude-agent-sdk"), async (original) => {
  const sdk = await original();
  const pathToClaudeCodeExecutable = program("claude");
  const query: typeof sdk.query = ({ prompt, options }) =>
    sdk.query({ prompt, options: { ...options, pathToClaudeCodeExecutable } });
  return { ...sdk, query };
});
vi.mock(import("@openai/codex-sdk"), async (original) => {
  const sdk = await original();
  class Codex extends sdk.Codex {
    constructor(options: ConstructorParameters<typeof sdk.Codex>[0]) {
      super({ ...options, codexPathOverride: program("codex") });
    }
  }
  return { ...sdk, Codex };
});

test("the Claude Agent SDK 0.3.332: the reward rises", async () => {
  await expectRise("claude-agent", () => import("./claude-agent.ts"), [...prices("mcp__shop__price"), ...totals]);
});

test("the Codex SDK 0.163.0: the reward rises", async () => {
  const look = call("exec_command", { cmd: "cat prices.json" });
  await expectRise("codex", () => import("./codex.ts"), [look, ...totals]);
});
