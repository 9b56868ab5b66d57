/** An agent of the AI SDK 7: the agent class, a tool, and structured output. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { isStepCount, Output, ToolLoopAgent, tool } from "ai";
import { gatewayBaseURL } from "hone-rl";
import { z } from "zod";
import { instructions, priceInput, priceOf, shop } from "./shop.ts";

const hone = createOpenAICompatible({ name: "hone", baseURL: gatewayBaseURL(), supportsStructuredOutputs: true });

const agent = new ToolLoopAgent({
  model: hone("policy"),
  instructions,
  tools: { price: tool({ description: "The price of one item.", inputSchema: priceInput, execute: priceOf }) },
  output: Output.object({ schema: z.object({ total: z.number() }) }),
  // Hone does not constrain sampling to the schema: a reply that does not fit it gets a reward of 0.
  providerOptions: { hone: { strictJsonSchema: false } },
  stopWhen: isStepCount(3),
  maxRetries: 0,
});

export default shop("ai-sdk", async (prompt, { signal }) => {
  const { output, steps } = await agent.generate({ prompt, abortSignal: signal });
  return { text: String(output.total), lookups: steps.flatMap(({ toolResults }) => toolResults).length };
});
