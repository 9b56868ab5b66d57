/** Unmodified agents of agent frameworks: the episodes record exactly what their clients sent and received. */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { HumanMessage, trimMessages } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { Agent, OpenAIChatCompletionsModel, Runner, tool } from "@openai/agents";
import { generateObject } from "ai";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { type RunWorkflowOptions, runWorkflow, type Script } from "../testing/scripted.ts";
import { toSequences } from "../trajectories/batch.ts";
import type { Episode } from "../trajectories/types.ts";
import type { GatewayAddress, Workflow } from "./types.ts";

interface Row {
  question: string;
  answer: number;
}
const rows: Row[] = [{ question: "6 times 7, and 2 plus 3?", answer: 42 }];

/** What a client sent and got, call by call. */
interface ClientCall {
  roles: string[];
  prompt: number[];
  tokens: number[];
  logprobs: number[];
}

/** A `fetch` that asks for token ids and log-probabilities in addition to the framework's own request. */
function spy(): { calls: ClientCall[]; fetch: typeof fetch } {
  const calls: ClientCall[] = [];
  const spying = async (url: unknown, init?: RequestInit) => {
    const body = JSON.parse(String(init?.body)) as { messages: { role: string }[] };
    const asked = JSON.stringify({ ...body, logprobs: true, return_token_ids: true });
    const headers = new Headers(init?.headers);
    headers.delete("content-length");
    const response = await fetch(String(url), { ...init, headers, body: asked });
    const text = await response.text();
    if (response.ok) {
      const { choices, prompt_token_ids } = JSON.parse(text);
      const logprobs = choices[0].logprobs.content.map(({ logprob }: { logprob: number }) => logprob);
      const roles = body.messages.map(({ role }) => (role === "developer" ? "system" : role));
      calls.push({ roles, prompt: prompt_token_ids, tokens: choices[0].token_ids, logprobs });
    }
    return new Response(text, { status: response.status, headers: { "content-type": "application/json" } });
  };
  return { calls, fetch: spying as typeof fetch };
}

/** Steps and calls are the same, in the same order. */
function expectRecorded(episode: Episode | undefined, calls: readonly ClientCall[]): void {
  const steps = episode!.trajectories.flatMap((trajectory) => trajectory.steps);
  expect(
    steps.map(
      ({ messages, promptTokens, tokens, logprobs }): ClientCall => ({
        ...{ roles: messages.map(({ role }) => role), prompt: [...promptTokens], tokens: [...tokens] },
        logprobs: [...logprobs],
      }),
    ),
  ).toEqual(calls);
}

const causesOf = (episode: Episode | undefined) => episode!.trajectories.map((own) => toSequences(own).causes);
const call = (name: string, args: object) => `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
const run = (workflow: Workflow<Row>, reply: Script, more: Partial<RunWorkflowOptions<Row>> = {}) =>
  runWorkflow({ workflow, rows, reply, unenforceable: "allow", ...more });

describe("the OpenAI Agents SDK", () => {
  const runner = new Runner({ tracingDisabled: true });
  const modelAt = ({ baseURL, apiKey }: GatewayAddress, fetched: typeof fetch) =>
    new OpenAIChatCompletionsModel(new OpenAI({ baseURL, apiKey, fetch: fetched, maxRetries: 0 }), "policy");
  const arithmetic = (name: string, execute: (a: number, b: number) => number) =>
    tool({
      ...{ name, description: `Does ${name}.`, parameters: z.object({ a: z.number(), b: z.number() }) },
      execute: ({ a, b }) => execute(a, b),
    });
  const tools = [arithmetic("multiply", (a, b) => a * b), arithmetic("add", (a, b) => a + b)];

  test("calls two tools at once, in one sequence", async () => {
    const client = spy();
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      const agent = new Agent({
        name: "Math",
        instructions: "Use tools.",
        model: modelAt(gateway, client.fetch),
        tools,
      });
      const { finalOutput } = await runner.run(agent, row.question);
      return Number(String(finalOutput).includes(String(row.answer)));
    };
    const reply: Script = (messages) => {
      const results = messages.filter(({ role }) => role === "tool").map(({ content }) => content);
      return results.length === 0
        ? `${call("multiply", { a: 6, b: 7 })}\n${call("add", { a: 2, b: 3 })}`
        : `They are ${results.join(" and ")}.`;
    };
    const [episode] = await run(workflow, reply);
    expectRecorded(episode, client.calls);
    expect(client.calls.map(({ roles }) => roles)).toEqual([
      ["system", "user"],
      ["system", "user", "assistant", "tool", "tool"],
    ]);
    expect(episode).toMatchObject({ trajectories: [{ reward: 1, steps: [{}, { text: "They are 42 and 5." }] }] });
    expect(causesOf(episode)).toEqual([[]]);
  });

  test("hands off to an agent of another role, which is compared within that role", async () => {
    const client = spy();
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      const solver = new Agent({
        name: "Solver",
        instructions: "Solve.",
        model: modelAt(gateway.as("solver"), client.fetch),
      });
      const triage = Agent.create({
        ...{ name: "Triage", instructions: "Hand off.", model: modelAt(gateway.as("triage"), client.fetch) },
        handoffs: [solver],
      });
      const { finalOutput, lastAgent } = await runner.run(triage, row.question);
      return { reward: Number(finalOutput === "42"), rewards: { triage: Number(lastAgent?.name === "Solver") / 2 } };
    };
    const reply: Script = (messages) =>
      messages[0]!.content.startsWith("Solve") ? "42" : call("transfer_to_Solver", {});
    const [episode] = await run(workflow, reply);
    expectRecorded(episode, client.calls);
    expect(episode!.trajectories).toMatchObject([
      { name: "triage", reward: 0.5, steps: [{ starts: "new_conversation" }] },
      { name: "solver", reward: 1, steps: [{ starts: "new_conversation", text: "42" }] },
    ]);
  });

  test.each<[string, string, object]>([
    ["fits", '{"answer": 42}', { termination: "env_done", trajectories: [{ reward: 1 }] }],
    [
      "does not fit",
      '{"answer": "a lot"}',
      {
        termination: "error",
        failure: { kind: "model", message: expect.stringContaining("is not the requested JSON") },
        trajectories: [{ reward: 0, steps: [{ text: '{"answer": "a lot"}' }] }],
      },
    ],
    ["is cut off", `{"answer": ${"4".repeat(80)}}`, { termination: "max_response_length_exceeded" }],
  ])("with an outputType: a reply that %s", async (_what, text, expected) => {
    let attempts = 0;
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      attempts++;
      const outputType = z.object({ answer: z.number() });
      const agent = new Agent({ name: "Math", outputType, model: modelAt(gateway, fetch) });
      const { finalOutput } = await runner.run(agent, row.question);
      return Number(finalOutput?.answer === row.answer);
    };
    const onAgentError = { reward: 0 };
    const [episode] = await run(workflow, () => text, { maxResponseLength: 40, onAgentError });
    expect(episode).toMatchObject(expected);
    expect(attempts).toBe(1);
  });
});

test.each<[string, object, number, object]>([
  ["its own limit", { maxOutputTokens: 5 }, 1000, { termination: "error", failure: { kind: "model" } }],
  ["the run's limit", {}, 5, { termination: "max_response_length_exceeded", failure: { kind: "model" } }],
])(
  "the AI SDK's generateObject on a reply that %s cut off gets the reward of on_agent_error",
  async (_, options, most, expected) => {
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      const provider = createOpenAICompatible({
        ...{ name: "hone", baseURL: gateway.baseURL, apiKey: gateway.apiKey, supportsStructuredOutputs: true },
      });
      const schema = z.object({ answer: z.number() });
      const { object } = await generateObject({ model: provider("policy"), prompt: row.question, schema, ...options });
      return Number(object.answer === row.answer);
    };
    const more = { maxResponseLength: most, onAgentError: { reward: -1 } };
    const [episode] = await run(workflow, () => '{"answer": 42}', more);
    expect(episode).toMatchObject({
      ...expected,
      retries: 0,
      trajectories: [{ reward: -1, steps: [{ text: '{"ans' }] }],
    });
  },
);

test("LangGraph trims its history: every call is recorded as it was sent, with the reason for each new sequence", async () => {
  const client = spy();
  const add = langchainTool(({ a, b }) => String(a + b), {
    ...{ name: "add", description: "Adds.", schema: z.object({ a: z.number(), b: z.number() }) },
  });
  const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
    const { baseURL, apiKey } = gateway;
    const llm = new ChatOpenAI({
      model: "policy",
      apiKey,
      maxRetries: 0,
      configuration: { baseURL, fetch: client.fetch },
    });
    const agent = createReactAgent({
      ...{ llm, tools: [add] },
      preModelHook: async ({ messages }) => ({
        llmInputMessages: await trimMessages(messages, {
          ...{ maxTokens: 4, tokenCounter: (all) => all.length, strategy: "last", startOn: ["human", "ai"] },
        }),
      }),
    });
    const { messages } = await agent.invoke({ messages: [new HumanMessage(row.question)] });
    return Number(messages.at(-1)?.content === "done");
  };
  let turns = 0;
  const reply: Script = () => (++turns < 4 ? call("add", { a: turns, b: 1 }) : "done");
  const [episode] = await run(workflow, reply);
  expectRecorded(episode, client.calls);
  expect(client.calls.map(({ roles }) => roles.join(" "))).toEqual([
    "user",
    "user assistant tool",
    "assistant tool assistant tool",
    "assistant tool assistant tool",
  ]);
  expect(episode).toMatchObject({ trajectories: [{ reward: 1 }] });
  expect(causesOf(episode)).toEqual([["history_rewritten", "history_rewritten"]]);
});
