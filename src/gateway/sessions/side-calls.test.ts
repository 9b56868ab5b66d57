import { expect, test } from "vitest";
import { type ChatMessage, toMessage } from "../../chat/messages.ts";
import { createSideCalls } from "./side-calls.ts";

const tools = [{ name: "bash" }, { name: "read" }];
const system = (content: string): ChatMessage => ({ role: "system", content });
const user = (content: string): ChatMessage => ({ role: "user", content });
const side = { role: "side", presumedSide: true };
const reply = (content: string) => ({ content, toolCalls: [], problems: [] });
const summary = "The agent listed the files and found the answer in notes.txt, line 3.";

test("calls without tools, of subagents, and of the agent itself", () => {
  const sideCalls = createSideCalls();
  const agent = [system("You code."), user("Fix it.")];
  expect(sideCalls.classify([system("Write a title."), user("Fix it.")], [])).toEqual(side);
  expect(sideCalls.classify(agent, tools)).toEqual({});
  sideCalls.answered(undefined, reply("I look."));
  expect(sideCalls.classify([system("You search."), user("Find x.")], tools)).toEqual({ role: "subagent" });
  expect(sideCalls.classify(agent, tools.slice(1))).toEqual({ role: "subagent" });
  // A continued conversation remains the agent's, also with other tools or another system prompt.
  const next = [system("You code. Today is Friday."), user("Fix it."), toMessage(reply("I look.")), user("Go on.")];
  expect(sideCalls.classify(next, [...tools, { name: "write" }])).toEqual({});
});

test("a new conversation that quotes a reply is compacted; one that does not is only new", () => {
  const sideCalls = createSideCalls();
  const agent = [system("You code."), user("Fix it.")];
  expect(sideCalls.classify(agent, tools)).toEqual({});
  sideCalls.answered(undefined, reply("I look."));
  expect(sideCalls.classify([user("Summarize.")], [])).toEqual(side);
  sideCalls.answered("side", reply(`${summary}\n`));
  expect(sideCalls.classify([system("You code."), user("Fix it again.")], tools)).toEqual({});
  const changed = { ...toMessage(reply("I look into the folder of the tests, all of them.")), toolCalls: [] };
  sideCalls.answered(undefined, {
    ...reply(changed.content as string),
    toolCalls: [{ id: "1", name: "bash", arguments: {} }],
  });
  expect(sideCalls.classify([system("You code."), user("Fix it."), changed], tools)).toEqual({});
  for (const quote of [
    [user(`So far: ${summary} Go on.`)],
    [user("So far?"), toMessage(reply(summary)), user("Go on.")],
  ])
    expect(sideCalls.classify([system("You code."), ...quote], tools)).toEqual({ compacted: true });
});
