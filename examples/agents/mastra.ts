/** An agent of Mastra. */
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { gatewayBaseURL } from "hone-rl";
import { instructions, priceInput, priceOf, shop } from "./shop.ts";

const price = createTool({
  id: "price",
  description: "The price of one item.",
  inputSchema: priceInput,
  execute: async (input) => priceOf(input),
});

const agent = new Agent({
  id: "shop",
  name: "shop",
  instructions,
  model: { id: "hone/policy", url: gatewayBaseURL(), apiKey: "any" },
  tools: { price },
  maxRetries: 0,
});

export default shop("mastra", async (question, { signal }) => {
  const { text, toolResults } = await agent.generate(question, { maxSteps: 3, abortSignal: signal });
  return { text, lookups: toolResults.length };
});
