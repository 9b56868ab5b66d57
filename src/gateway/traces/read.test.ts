import { afterAll, beforeAll, expect, test } from "vitest";
import { memoryStore } from "../../images/images.ts";
import { dataUrl, png } from "../../images/pictures.fixture.ts";
import { testGateway } from "../open-gateway.fixture.ts";
import { exportTraces } from "./read.ts";

const { hash } = memoryStore().add(png(4, 3));

let opened: Awaited<ReturnType<typeof testGateway>>;
const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters: { type: "object" } } }];

/** A tool call with its answer, then another conversation, then a call that is refused. */
beforeAll(async () => {
  opened = await testGateway({
    reply: (messages) =>
      messages.at(-1)?.role === "user" && messages.some(({ content }) => content.includes("tools:"))
        ? '<think>sum</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        : "done",
  });
  const ask = async (messages: object[], more: object = {}) => {
    const response = await fetch(`${opened.entry.baseURL}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ messages, ...more }),
    });
    return ((await response.json()) as { choices?: { message: Record<string, unknown> }[] }).choices?.[0]?.message;
  };
  const question = { role: "user", content: "1 + 1?" };
  const call = (await ask([question], { tools }))!;
  const { reasoning_content: _, ...sentBack } = call;
  const id = (call.tool_calls as { id: string }[])[0]!.id;
  await ask([question, sentBack, { role: "tool", tool_call_id: id, content: "2" }], { tools });
  await ask([{ role: "user", content: "bye" }]);
  await ask([{ role: "user", content: [{ type: "image_url", image_url: { url: dataUrl(png(4, 3)) } }] }]);
  await ask([{ role: "user", content: "x".repeat(20_000) }]);
  const { store } = opened;
  const known = { session: "train-1/task:0", attempt: 0, startedMs: 1, endedMs: 2, taskId: "task" };
  store.session({ ...known, termination: "env_done", reward: 0.5, correct: false, failure: null, metadata: {} });
});
afterAll(() => opened.close());

test("conversations for fine-tuning: each complete, in OpenAI's form", () => {
  const lines = [...exportTraces(opened.store, "sft", {})];
  expect(lines).toMatchObject([
    {
      messages: [
        { role: "user", content: "1 + 1?" },
        { role: "assistant", tool_calls: [{ type: "function", function: { name: "add", arguments: '{"a": 1}' } }] },
        { role: "tool", content: "2" },
        { role: "assistant", content: "done" },
      ],
      tools,
    },
    { messages: [{ content: "bye" }, { content: "done" }] },
    { messages: [{ content: [{ type: "image_url", image_url: { url: `media/${hash}.png` } }] }, { content: "done" }] },
  ]);
});

test("tasks for a dataset, and every call as it is stored", () => {
  expect([...exportTraces(opened.store, "rows", {})]).toEqual([
    {
      ...{ id: "task", session: "train-1/task:0", reward: 0.5, correct: false, reply: "done" },
      messages: [{ role: "user", content: "1 + 1?" }],
      tools,
    },
  ]);
  expect([...exportTraces(opened.store, "rows", { minReward: 0.6 })]).toEqual([]);
  expect([...exportTraces(opened.store, "jsonl", {})]).toMatchObject([
    { status: "ok", reward: 0.5, tokens: Array.from(opened.steps()[0]!.tokens) },
    { status: "ok" },
    { status: "ok" },
    { status: "ok" },
    { status: "refused", tokens: [], error: expect.stringContaining("the limit is") },
  ]);
});
