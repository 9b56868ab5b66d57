/** Agents with unmodified popular clients call the gateway: checks what they receive and what is recorded. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { type AIMessage, HumanMessage, type ToolMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { z } from "zod";
import type { Script } from "../testing/scripted.ts";
import { toSequences } from "../trajectories/batch.ts";
import { testGateway } from "./open-gateway.fixture.ts";

/** Thinks, calls a tool with unusually formatted arguments, then answers from the tool's result. */
const addTwice: Script = (messages) => {
  const results = messages.filter(({ role }) => role === "tool");
  if (results.length === 0) {
    return '<think>I need a sum</think>Let me add. <tool_call>{"name": "add", "arguments": {  "b": 7.0, "a":6 }}</tool_call>';
  }
  if (messages.at(-1)?.role === "tool") return `<think>done</think>It is ${results.at(-1)!.content}.`;
  return "You are welcome.";
};

let opened: Awaited<ReturnType<typeof testGateway>>;
beforeEach(async () => {
  opened = await testGateway({ reply: addTwice });
});
afterEach(() => opened.close());

/** Expects all calls in one sequence, in which exactly the sampled tokens are trained. */
function expectOneSequence(calls: number): void {
  const [trajectory] = opened.session.trajectories();
  expect(trajectory?.steps.map(({ starts }) => starts)).toEqual([
    "new_conversation",
    ...Array(calls - 1).fill(undefined),
  ]);
  const { sequences, causes } = toSequences({
    ...trajectory!,
    steps: trajectory!.steps.map((step) => ({ ...step, policyVersion: 0 })),
  });
  expect([sequences.length, causes]).toEqual([1, []]);
  const { tokens, trained } = sequences[0]!;
  const said = tokens.slice(1).filter((_, index) => trained[index] === 1);
  expect(opened.chat.decode(said)).toBe(trajectory!.steps.map((step) => opened.chat.decode(step.tokens)).join(""));
  expect(opened.gateway.counts()).toMatchObject({ "gateway/calls_ok": calls, "gateway/calls_failed": 0 });
}

const parameters = {
  type: "object",
  properties: { a: { type: "number" }, b: { type: "number" } },
  required: ["a", "b"],
} as const;

describe("the openai client", () => {
  const client = () => new OpenAI({ baseURL: opened.entry.baseURL, apiKey: opened.entry.apiKey });
  const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters } }] as const;

  test("a tool agent with chat completions", async () => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [
      { role: "system", content: "You add." },
      { role: "user", content: "6 + 7?" },
    ];
    const ask = () => client().chat.completions.create({ model: "gpt-x", messages, tools: [...tools] });
    const first = await ask();
    const { message, finish_reason } = first.choices[0]!;
    expect([message.content, finish_reason, message.tool_calls?.length]).toEqual(["Let me add.", "tool_calls", 1]);
    const call = message.tool_calls![0] as OpenAI.ChatCompletionMessageFunctionToolCall;
    const { a, b } = JSON.parse(call.function.arguments) as { a: number; b: number };
    messages.push(message, { role: "tool", tool_call_id: call.id, content: String(a + b) });
    const second = await ask();
    expect(second.choices[0]).toMatchObject({ message: { content: "It is 13." }, finish_reason: "stop" });
    // The client does not send the thinking back.
    messages.push(
      { role: "assistant", content: second.choices[0]!.message.content },
      { role: "user", content: "thanks" },
    );
    expect((await ask()).choices[0]!.message.content).toBe("You are welcome.");
    expectOneSequence(3);
  });

  test("streams content, calls, usage, and the helper assembles them", async () => {
    const stream = client().chat.completions.stream({
      model: "m",
      messages: [{ role: "user", content: "6 + 7?" }],
      tools: [...tools],
      stream_options: { include_usage: true },
    });
    const pieces: string[] = [];
    stream.on("content", (delta) => pieces.push(delta));
    const final = await stream.finalChatCompletion();
    const message = final.choices[0]!.message;
    expect([message.content, pieces.join("")]).toEqual(["Let me add.", "Let me add."]);
    expect(pieces.length).toBeGreaterThan(3);
    expect(message.tool_calls).toMatchObject([{ type: "function", function: { name: "add" } }]);
    expect(final.choices[0]!.finish_reason).toBe("tool_calls");
    expect(final.usage).toEqual({
      prompt_tokens: opened.steps()[0]!.promptTokens.length,
      completion_tokens: opened.steps()[0]!.tokens.length,
      total_tokens: opened.steps()[0]!.promptTokens.length + opened.steps()[0]!.tokens.length,
    });
  });

  test("a tool agent with responses, streamed", async () => {
    const input: OpenAI.Responses.ResponseInput = [{ role: "user", content: "6 + 7?" }];
    const responseTools = [{ type: "function" as const, name: "add", parameters, strict: false }];
    const ask = () =>
      client().responses.stream({ model: "m", instructions: "You add.", input, tools: responseTools }).finalResponse();
    const first = await ask();
    expect(first.output.map(({ type }) => type)).toEqual(["reasoning", "message", "function_call"]);
    const call = first.output.find((item) => item.type === "function_call")!;
    input.push(...(first.output as OpenAI.Responses.ResponseInputItem[]), {
      type: "function_call_output",
      call_id: call.call_id,
      output: "13",
    });
    const second = await ask();
    expect(second.output_text).toBe("It is 13.");
    input.push(...(second.output as OpenAI.Responses.ResponseInputItem[]), { role: "user", content: "thanks" });
    expect((await ask()).output_text).toBe("You are welcome.");
    expectOneSequence(3);
  });

  test("completions with several prompts, replies, token ids and log-probabilities", async () => {
    const answer = (await client().completions.create({
      model: "m",
      prompt: ["<|user|>a<|end|><|assistant|>", "<|user|>b<|end|><|assistant|>"],
      n: 2,
      max_tokens: 9,
      logprobs: 1,
      ...{ return_token_ids: true },
    })) as OpenAI.Completion & { choices: { token_ids: number[] }[] };
    expect(answer.choices.map(({ index, text, finish_reason }) => [index, text, finish_reason])).toEqual(
      [0, 1, 2, 3].map((index) => [index, "<think>I ", "length"]),
    );
    expect(answer.choices[0]!.logprobs?.token_logprobs).toEqual(Array(9).fill(0));
    expect(opened.chat.decode(answer.choices[0]!.token_ids)).toBe("<think>I ");
    expect(answer.usage).toMatchObject({ completion_tokens: 36 });
    expect(opened.steps()).toHaveLength(4);
  });

  test("lists the model", async () => {
    expect((await client().models.list()).data.map(({ id }) => id)).toEqual(["policy"]);
    expect((await client().models.retrieve("policy")).id).toBe("policy");
  });
});

test("the Anthropic client: a tool agent, streamed", async () => {
  const client = new Anthropic({ baseURL: opened.entry.anthropicBaseURL, apiKey: opened.entry.apiKey });
  const messages: Anthropic.MessageParam[] = [{ role: "user", content: "6 + 7?" }];
  const tools = [{ name: "add", input_schema: { ...parameters, required: ["a", "b"] } }];
  const ask = () =>
    client.messages.stream({ model: "m", max_tokens: 200, system: "You add.", messages, tools }).finalMessage();
  const first = await ask();
  expect(first.content.map(({ type }) => type)).toEqual(["thinking", "text", "tool_use"]);
  expect(first.stop_reason).toBe("tool_use");
  const call = first.content.find((block) => block.type === "tool_use")!;
  expect(call.input).toEqual({ a: 6, b: 7 });
  messages.push(
    { role: "assistant", content: first.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "13" }] },
  );
  const second = await client.messages.create({ model: "m", max_tokens: 200, system: "You add.", messages, tools });
  expect(second).toMatchObject({
    content: [{ type: "thinking" }, { type: "text", text: "It is 13." }],
    stop_reason: "end_turn",
  });
  expect(second.usage.output_tokens).toBe(opened.steps()[1]!.tokens.length);
  const count = await client.messages.countTokens({ model: "m", system: "You add.", messages: [messages[0]!], tools });
  expect(count.input_tokens).toBe(first.usage.input_tokens);
  expectOneSequence(2);
});

describe("the AI SDK", () => {
  const add = tool({
    description: "Adds.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async ({ a, b }) => a + b,
  });
  const model = () => createOpenAICompatible({ name: "hone", baseURL: opened.entry.baseURL })("policy");

  test("structured output without supportsStructuredOutputs loses its schema, which is said; with it, the model sees it", async () => {
    await opened.close();
    opened = await testGateway({ reply: () => '{"a": 1}' });
    const { baseURL } = opened.entry;
    const schema = z.object({ a: z.number() });
    for (const supportsStructuredOutputs of [false, true]) {
      const provider = createOpenAICompatible({ name: "hone", baseURL, supportsStructuredOutputs });
      const providerOptions = { hone: { strictJsonSchema: false } };
      const asked = { model: provider("policy"), prompt: "a?", output: Output.object({ schema }), providerOptions };
      expect((await generateText(asked)).output).toEqual({ a: 1 });
    }
    const systems = opened.steps().map(({ messages }) => messages.filter(({ role }) => role === "system").length);
    expect(systems).toEqual([0, 1]);
    expect(opened.lines.join()).toContain("createOpenAICompatible({ supportsStructuredOutputs: true, ... }) sends it");
    expect(opened.gateway.counts()).toMatchObject({ "gateway/json_without_schema": 1 });
  });

  test("generateText runs its tool loop", async () => {
    const { text, steps } = await generateText({
      ...{ model: model(), system: "You add.", prompt: "6 + 7?", tools: { add } },
      stopWhen: stepCountIs(5),
    });
    expect([text, steps.length]).toEqual(["It is 13.", 2]);
    expect(steps[0]!.reasoningText).toBe("I need a sum");
    expectOneSequence(2);
  });

  test("streamText runs its tool loop", async () => {
    const result = streamText({ ...{ model: model(), prompt: "6 + 7?", tools: { add } }, stopWhen: stepCountIs(5) });
    const pieces: string[] = [];
    for await (const piece of result.textStream) pieces.push(piece);
    expect(pieces.join("")).toBe("Let me add.It is 13.");
    expect((await result.steps).map(({ finishReason }) => finishReason)).toEqual(["tool-calls", "stop"]);
    expectOneSequence(2);
  });
});

test("LangChain: a tool agent", async () => {
  const add = langchainTool(async ({ a, b }: { a: number; b: number }) => String(a + b), {
    name: "add",
    description: "Adds.",
    schema: z.object({ a: z.number(), b: z.number() }),
  });
  const { baseURL, apiKey } = opened.entry;
  const model = new ChatOpenAI({ model: "policy", apiKey, configuration: { baseURL } }).bindTools([add]);
  const question = new HumanMessage("6 + 7?");
  const first = (await model.invoke([question])) as AIMessage;
  expect(first.tool_calls).toMatchObject([{ name: "add", args: { a: 6, b: 7 } }]);
  const result = (await add.invoke(first.tool_calls![0]!)) as ToolMessage;
  const second = await model.invoke([question, first, result]);
  expect(second.content).toBe("It is 13.");
  expectOneSequence(2);
});

test("plain fetch, and every call is in the trace store as it was sampled", async () => {
  const response = await fetch(`${opened.entry.baseURL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "6 + 7?" }], metadata: { run: 1 } }),
  });
  expect(response.status).toBe(200);
  const { id } = (await response.json()) as { id: string };
  const [step] = opened.steps();
  expect(opened.store.find(id)).toMatchObject({
    ...{ session: "train-1/task:0", attempt: 0, role: "agent", api: "chat.completions", status: "ok" },
    ...{ promptTokens: step!.promptTokens, tokens: step!.tokens, logprobs: step!.logprobs, policyVersion: -1 },
    messages: [{ role: "user", content: "6 + 7?" }],
    reply: { role: "assistant", reasoning: "I need a sum" },
    params: { temperature: 1, maxTokens: 1000 },
    metadata: { run: 1 },
  });
});

test("the Responses API knows the items that a client refers to by their ids, as the AI SDK does", async () => {
  const client = new OpenAI(opened.entry);
  const tools = [{ type: "function" as const, name: "add", parameters: {}, strict: false }];
  const question = { role: "user" as const, content: "6 + 7?" };
  const { output } = await client.responses.create({ model: "m", input: [question], tools });
  const call = output.find((item) => item.type === "function_call")!;
  const references = output.map(({ id }) => ({ type: "item_reference" as const, id: id! }));
  const result = { type: "function_call_output" as const, call_id: call.call_id, output: "13" };
  const next = await client.responses.create({ model: "m", input: [question, ...references, result], tools });
  expect(next.output_text).toBe("It is 13.");
  expectOneSequence(2);
  const unknown = { type: "item_reference" as const, id: "msg_unknown" };
  await expect(client.responses.create({ model: "m", input: [question, unknown] })).rejects.toThrow(/openai\.chat\(/);
});

test("redacted thinking and refusals in a history do not end the rollout", async () => {
  const { baseURL, apiKey } = opened.entry;
  const openai = new OpenAI(opened.entry);
  const refusal = [{ type: "refusal" as const, refusal: "I cannot." }];
  const history = [
    { role: "user" as const, content: "q" },
    { role: "assistant" as const, content: refusal },
    { role: "user" as const, content: "why?" },
  ];
  await openai.chat.completions.create({ model: "m", messages: history });
  await openai.chat.completions.create({
    model: "m",
    messages: [history[0]!, { role: "assistant", content: null, refusal: "I cannot." }, history[2]!],
  });
  const anthropic = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey });
  const redacted = [
    { type: "redacted_thinking" as const, data: "x" },
    { type: "text" as const, text: "hm" },
  ];
  await anthropic.messages.create({
    model: "m",
    max_tokens: 20,
    messages: [
      { role: "user", content: "q" },
      { role: "assistant", content: redacted },
      { role: "user", content: "why?" },
    ],
  });
  const asked = opened.steps().map(({ messages }) => messages.map(({ content }) => content));
  expect(asked).toEqual([
    ["q", "I cannot.", "why?"],
    ["q", "I cannot.", "why?"],
    ["q", "hm", "why?"],
  ]);
});
