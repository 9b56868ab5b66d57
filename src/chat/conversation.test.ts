import { describe, expect, test } from "vitest";
import { characterChat } from "../testing/scripted.ts";
import { openConversation } from "./conversation.ts";
import { type ChatMessage, type ToolDefinition, toMessage } from "./messages.ts";

const chat = characterChat();
const user = (content: string): ChatMessage => ({ role: "user", content });
const sample = (text: string) => ({ tokens: chat.encode(`${text}<|end|>`) });
const tools: ToolDefinition[] = [{ name: "add", description: "adds", parameters: { type: "object" } }];
const call = (json: string) => `<tool_call>${json}</tool_call>`;

/** A conversation whose first turn was "hi" and this reply. */
function begun(reply: string, options = {}) {
  const conversation = openConversation(chat);
  const first = conversation.begin([user("hi")], options);
  return { conversation, first, reply: first.record(sample(reply)) };
}
const text = (tokens: Int32Array) => chat.decode(tokens);

test("the first call is rendered; the next call continues its exact tokens", () => {
  const { conversation, first, reply } = begun("  hello ");
  expect([text(first.prompt), first.starts]).toEqual(["<|user|>hi<|end|><|assistant|>", "new_conversation"]);
  const next = conversation.begin([user("hi"), { role: "assistant", content: "hello" }, user("more")]);
  expect(reply.content).toBe("  hello ");
  expect([text(next.prompt), next.starts]).toEqual([
    "<|user|>hi<|end|><|assistant|>  hello <|end|><|user|>more<|end|><|assistant|>",
    undefined,
  ]);
});

test("a reply that was cut off is closed by the template's end of turn", () => {
  const { conversation, first } = begun("");
  first.record({ tokens: chat.encode("hel") });
  const next = conversation.begin([user("hi"), { role: "assistant", content: "hel" }, user("go on")]);
  expect(text(next.prompt)).toContain("<|assistant|>hel<|end|><|user|>go on");
});

test("a client that received a reply without its stop string continues from the whole reply", () => {
  const reply = "I look.\nObservation:";
  for (const [given, starts] of [
    ["I look.", undefined],
    [reply, undefined],
    ["I look", "history_rewritten"],
  ] as const) {
    const { conversation } = begun(reply, { stop: ["Observation:"] });
    const next = conversation.begin([user("hi"), { role: "assistant", content: given }, user("rain")]);
    expect(next.starts).toBe(starts);
    if (starts === undefined) expect(text(next.prompt)).toContain(`${reply}<|end|><|user|>rain<|end|>`);
    // Later turns continue from the whole reply too.
    next.record(sample("wet"));
    const third = [{ role: "assistant", content: given }, user("rain"), { role: "assistant", content: "wet" }] as const;
    expect(conversation.begin([user("hi"), ...third, user("and?")]).starts).toBe(undefined);
  }
});

test("a client that received thinking without a start as text, before its answer, continues the reply", () => {
  for (const [given, starts] of [
    ["so\n\nfour", undefined],
    ["four", undefined],
    ["so", "history_rewritten"],
  ] as const) {
    const { conversation, reply } = begun("so</think>four");
    expect([reply.reasoning, reply.content]).toEqual(["so", "four"]);
    const next = conversation.begin([user("hi"), { role: "assistant", content: given }, user("more")]);
    expect(next.starts).toBe(starts);
    if (starts === undefined) expect(text(next.prompt)).toContain("so</think>four<|end|><|user|>more<|end|>");
  }
});

describe("a client's changes to a tool call", () => {
  const written = '{"name": "add",  "arguments": {"b": 2, "a": {"x": 1}}}';
  const { conversation, reply } = begun(`let me<think>${call(written)}`, { tools });
  const { id } = reply.toolCalls[0]!;
  const back = (message: Partial<ChatMessage>, toolCallId = id) =>
    conversation.begin(
      [user("hi"), { role: "assistant", content: "", ...message }, { role: "tool", content: "3", toolCallId }],
      { tools },
    );

  test.each<[string, Partial<ChatMessage>, string?]>([
    ["nothing", toMessage(reply)],
    ["arguments in another order, no text", { toolCalls: [{ id, name: "add", arguments: { a: { x: 1 }, b: 2 } }] }],
    ["defaults filled in", { toolCalls: [{ id, name: "add", arguments: { a: { x: 1, y: 0 }, b: 2, c: 0 } }] }],
    ["unknown keys left out", { toolCalls: [{ id, name: "add", arguments: { b: 2 } }] }],
    ["an id of its own", { toolCalls: [{ id: "x", name: "add", arguments: { a: { x: 1 }, b: 2 } }] }, "x"],
  ])("%s: the same history", (_, message, result) => {
    const { prompt, starts } = back(message, result);
    expect(starts === undefined || starts === "branched").toBe(true);
    expect(text(prompt)).toContain(`let me<think>${call(written)}<|end|><|tool|>3<|end|><|assistant|>`);
  });

  test.each<[string, Partial<ChatMessage>]>([
    ["another value", { toolCalls: [{ id, name: "add", arguments: { a: { x: 1 }, b: 3 } }] }],
    ["another tool", { toolCalls: [{ id, name: "sub", arguments: { a: { x: 1 }, b: 2 } }] }],
    ["no call", {}],
    ["another text", { ...toMessage(reply), content: "let us" }],
    ["thinking that the model did not write", { ...toMessage(reply), reasoning: "hm" }],
  ])("%s: another history", (_, message) => {
    expect(back(message).starts).toBe("history_rewritten");
  });
});

test("equal replies to one prompt are distinguished by the ids of their calls", () => {
  const conversation = openConversation(chat);
  const [first, second] = [conversation.begin([user("hi")], { tools }), conversation.begin([user("hi")], { tools })];
  const replies = [
    first.record(sample(call('{"name": "add", "arguments": {"a": 1}}'))),
    second.record(sample(call('{"name":"add","arguments":{"a":1}}'))),
  ];
  const [one, two] = replies.map((reply) => {
    const result: ChatMessage = { role: "tool", content: "2", toolCallId: reply.toolCalls[0]!.id };
    return conversation.begin([user("hi"), toMessage(reply), result], { tools });
  });
  expect([one!.starts, two!.starts]).toEqual([undefined, undefined]);
  expect(text(one!.prompt)).toContain('{"name": "add", "arguments": {"a": 1}}');
  expect(text(two!.prompt)).toContain('{"name":"add","arguments":{"a":1}}');
});

test("content that is not text is refused", () => {
  const parts = [{ type: "text", text: "hi" }] as unknown as string;
  expect(() => openConversation(chat).begin([user("a"), { role: "user", content: parts }])).toThrow(
    "message 2 (user) has a list as content",
  );
});

test("a call that starts a new sequence reports the cause", () => {
  const { conversation } = begun("hello");
  const reply: ChatMessage = { role: "assistant", content: "hello" };
  const starts = (messages: ChatMessage[], options = {}) => conversation.begin(messages, options).starts;
  expect(starts([user("hi")])).toBe("new_conversation");
  expect(starts([user("ho"), reply, user("more")])).toBe("history_rewritten");
  expect(starts([user("hi"), reply, user("more")], { tools })).toBe("tools_changed");
  expect(starts([user("hi"), reply, user("more")], { thinking: false })).toBe("options_changed");
  expect(starts([user("hi"), reply, user("more")])).toBe(undefined);
  expect(starts([user("hi"), reply, user("else")])).toBe("branched");
  expect(starts([user("one"), { role: "assistant", content: "shot" }, user("two")])).toBe("new_conversation");
});

test("no text of a message is taken for the marks of a rendering", () => {
  for (const content of ["Qz7reply7zQ", "Qz7thinking17zQ", "a Qz7reply7zQ b Qzabcdefghijklmnopreply7zQ"]) {
    const { conversation, reply } = begun("<think>so</think>hello");
    const next = conversation.begin([user("hi"), toMessage(reply), user(content), user("and?")]);
    expect(next.starts).toBeUndefined();
    expect(text(next.prompt)).toContain(`<|end|><|user|>${content}<|end|><|user|>and?<|end|>`);
    const inReply = begun(content);
    const after = inReply.conversation.begin([user("hi"), toMessage(inReply.reply), user("more")]);
    expect(text(after.prompt)).toContain(`${content}<|end|><|user|>more<|end|>`);
  }
});
