/** A graph of LangGraph: the model and its tools take turns. */
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { END, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { gatewayBaseURL } from "hone-rl";
import { instructions, priceInput, priceOf, shop } from "./shop.ts";

const price = tool((input) => String(priceOf(input)), {
  name: "price",
  description: "The price of one item.",
  schema: priceInput,
});

const model = new ChatOpenAI({
  model: "policy",
  apiKey: "any",
  maxRetries: 0,
  configuration: { baseURL: gatewayBaseURL() },
}).bindTools([price]);

const graph = new StateGraph(MessagesAnnotation)
  .addNode("model", async ({ messages }, { signal }) => ({ messages: [await model.invoke(messages, { signal })] }))
  .addNode("tools", new ToolNode([price]))
  .addEdge(START, "model")
  .addConditionalEdges("model", (state) => (state.messages.length < 7 ? toolsCondition(state) : END), ["tools", END])
  .addEdge("tools", "model")
  .compile();

export default shop("langgraph", async (question, { signal }) => {
  const messages = [new SystemMessage(instructions), new HumanMessage(question)];
  const result = await graph.invoke({ messages }, { signal });
  const last = result.messages.at(-1);
  const lookups = result.messages.filter((message) => ToolMessage.isInstance(message)).length;
  return { text: AIMessage.isInstance(last) ? last.text : "", lookups };
});
