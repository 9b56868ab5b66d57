/** An agent of the OpenAI Agents SDK for JavaScript, through chat completions. */
import {
  Agent,
  MaxTurnsExceededError,
  run,
  setDefaultOpenAIClient,
  setOpenAIAPI,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import { gatewayBaseURL } from "hone-rl";
import OpenAI from "openai";
import { instructions, priceInput, priceOf, shop } from "./shop.ts";

setDefaultOpenAIClient(new OpenAI({ baseURL: gatewayBaseURL(), apiKey: "any", maxRetries: 0 }));
setOpenAIAPI("chat_completions"); // "responses" works too
setTracingDisabled(true); // traces would be sent to OpenAI

export default shop("openai-agents", async (question, { signal }) => {
  let lookups = 0;
  const price = tool({
    name: "price",
    description: "The price of one item.",
    parameters: priceInput,
    execute: (input) => {
      lookups++;
      return priceOf(input);
    },
  });
  const agent = new Agent({ name: "shop", instructions, model: "policy", tools: [price] });
  try {
    const { finalOutput = "" } = await run(agent, question, { maxTurns: 3, signal });
    return { text: finalOutput, lookups };
  } catch (error) {
    if (error instanceof MaxTurnsExceededError) return { text: "", lookups };
    throw error;
  }
});
