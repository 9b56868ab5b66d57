/** An agent of the Claude Agent SDK, which starts Claude Code for each rollout. */
import { tmpdir } from "node:os";
import { createSdkMcpServer, query, tool } from "@anthropic-ai/claude-agent-sdk";
import { instructions, priceInput, priceOf, shop } from "./shop.ts";

export default shop("claude-agent", async (prompt, { gateway, signal }) => {
  let [text, lookups] = ["", 0];
  const price = tool("price", "The price of one item.", priceInput.shape, async (input) => {
    lookups++;
    return { content: [{ type: "text", text: String(priceOf(input)) }] };
  });
  const abortController = new AbortController();
  signal.addEventListener("abort", () => abortController.abort());
  const { PATH = "", HOME = "" } = process.env;
  const model = { ANTHROPIC_BASE_URL: gateway.anthropicBaseURL, ANTHROPIC_API_KEY: gateway.apiKey };
  const messages = query({
    prompt,
    options: {
      model: "policy",
      systemPrompt: instructions, // without it, Claude Code's own: about 40,000 characters with its tools
      tools: [], // no shell and no files
      mcpServers: { shop: createSdkMcpServer({ name: "shop", tools: [price] }) },
      allowedTools: ["mcp__shop__price"],
      settingSources: [], // no settings of this machine
      maxTurns: 3,
      abortController,
      cwd: tmpdir(), // Claude Code describes its folder to the model
      env: { PATH, HOME, ...model, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" }, // no titles, no telemetry
    },
  });
  for await (const message of messages) {
    if (message.type !== "result") continue;
    if (message.subtype === "success") text = message.result; // else the turns were used up
    break;
  }
  return { text, lookups };
});
