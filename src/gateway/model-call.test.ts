import fc from "fast-check";
import { expect, test } from "vitest";
import { cutAtStop } from "../chat/conversation.ts";
import { characterChat } from "../testing/scripted.ts";
import { replyStream } from "./model-call.ts";

const chat = characterChat();
const tools = [{ name: "add" }];
const stops = ["STOP"];
const call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>';

function stream(text: string, options: Parameters<typeof replyStream>[1]) {
  const reader = replyStream(chat, options);
  const pushed = { content: "", reasoning: "" };
  for (const token of chat.encode(text)) {
    const { content, reasoning } = reader.push(token);
    pushed.content += content;
    pushed.reasoning += reasoning;
  }
  const reply = chat.parse(text, options.options);
  const rest = reader.end({ ...reply, content: cutAtStop(reply.content, options.stops) });
  return {
    pushed,
    reply,
    all: { content: pushed.content + rest.content, reasoning: pushed.reasoning + rest.reasoning },
  };
}

test.each([
  ["plain text", "a b\n c \n", {}, { content: "a b\n c", reasoning: "" }],
  ["thinking", " <think> so\n</think>\n\nfour ", {}, { content: "four", reasoning: "so" }],
  ["the beginning of a mark", "1 <thin", {}, { content: "1 <thin", reasoning: "" }],
  ["thinking that never ends", "<think>so </thin", {}, { content: "", reasoning: "so" }],
  ["a call", `See: ${call} then`, { tools }, { content: "See:", reasoning: "" }],
  ["a bracket without tools", "x[1] {", {}, { content: "x[1] {", reasoning: "" }],
  ["a special token", "a<|user|>b", {}, { content: "ab", reasoning: "" }],
  ["a stop string", "one STOP two", {}, { content: "one", reasoning: "" }],
  ["thinking that only ends", "so</think>four", {}, { content: "so", reasoning: "" }],
])("%s is sent as soon as it is certain", (_, text, options, pushed) => {
  expect(stream(text, { options, stops }).pushed).toEqual(pushed);
});

test("the pieces of a reply are the parsed reply", () => {
  const fragments = ["<think>", "</think>", "<th", "a", "b c", " ", "\n", "STO", "STOP", "[", call, "<|user|>", "ü"];
  const replies = fc.array(fc.constantFrom(...fragments), { maxLength: 12 }).map((parts) => parts.join(""));
  fc.assert(
    fc.property(replies, fc.boolean(), (text, offered) => {
      const { reply, pushed, all } = stream(text, { options: offered ? { tools } : {}, stops });
      const content = cutAtStop(reply.content, stops);
      const { reasoning = "" } = reply;
      // Thinking that only ended was sent as text, and stays text.
      if (pushed.reasoning === "" && pushed.content.trim() !== "" && reasoning.startsWith(pushed.content.trimStart())) {
        expect(all.reasoning).toBe("");
        expect(all.content.trim()).toBe(`${reasoning}\n\n${content}`.trim());
        return;
      }
      expect(all.reasoning).toBe(reasoning);
      // What was sent cannot be taken back when a later mark or call changes it.
      if (content.startsWith(pushed.content)) expect(all.content).toBe(content);
      else expect(/<\/think>|<tool_call>/.test(text)).toBe(true);
    }),
    { numRuns: 500, seed: 3 },
  );
});

test("a long reply is not parsed again with each token", () => {
  let parsed = 0;
  const decoded = { characters: 0 };
  const counting: typeof chat = {
    ...chat,
    parse: (...given) => {
      parsed++;
      return chat.parse(...given);
    },
    withoutSpecials(text) {
      decoded.characters += text.length;
      return chat.withoutSpecials(text);
    },
  };
  const text = `<think>${"thought ".repeat(5000)}</think>${"word ".repeat(5000)}`;
  const reader = replyStream(counting, { options: { tools }, stops });
  let content = "";
  for (const token of chat.encode(text)) content += reader.push(token).content;
  expect(content).toHaveLength(5 * 5000 - 1);
  expect(parsed).toBe(0);
  expect(decoded.characters).toBeLessThanOrEqual(text.length);
});
