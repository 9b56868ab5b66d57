import { expect, test } from "vitest";
import type { GatewayCalls } from "../agents/types.ts";
import { type ChatMessage, toMessage } from "../chat/messages.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { createSessions, createSideCalls } from "./sessions.ts";

test("the session that has been idle longest, among those opened by a call, is forgotten and can be opened again", () => {
  const opened: string[] = [];
  const forgotten: string[] = [];
  const generate = () => Promise.reject(new Error("not called"));
  const sessions = createSessions(({ session: name, attempt }) => {
    opened.push(name);
    return { name, attempt, session: { generate, reportProblem: () => {} }, onForgotten: () => forgotten.push(name) };
  });
  sessions.open({ name: "mine", attempt: 0, session: { generate, reportProblem: () => {} } });
  const call = (session: string) => sessions.get({ session, attempt: 0 }).name;
  for (let index = 0; index < 10_000; index++) call(`s${index}`);
  call("s0");
  expect(forgotten).toEqual([]);
  call("one more");
  expect([forgotten, sessions.live.length]).toEqual([["s1"], 10_001]);
  expect([call("mine"), call("s0"), call("s1")]).toEqual(["mine", "s0", "s1"]);
  expect([opened.length, forgotten]).toEqual([10_002, ["s1", "s2"]]);
});

/** What a workflow learns of the calls of an agent that hides its failures. */

async function callsAfter(...replies: (string | Error)[]): Promise<GatewayCalls> {
  let calls: GatewayCalls = { answered: -1 };
  await runWorkflow({
    rows: [0],
    reply: () => {
      const reply = replies.shift()!;
      if (reply instanceof Error) throw reply;
      return reply;
    },
    async workflow(_, { gateway }) {
      const headers = { "Content-Type": "application/json", Authorization: `Bearer ${gateway.apiKey}` };
      const body = JSON.stringify({ messages: [{ role: "user", content: "Hello" }] });
      const count = replies.length;
      for (let call = 0; call < count; call++) {
        const answer = await fetch(`${gateway.baseURL}/chat/completions`, { method: "POST", headers, body });
        await answer.text();
      }
      calls = gateway.calls();
      return 0;
    },
  });
  return calls;
}

test("a failure counts until a later call is answered", async () => {
  expect(await callsAfter()).toEqual({ answered: 0 });
  expect(await callsAfter("yes", new Error("no engine"))).toMatchObject({
    answered: 1,
    failure: { name: "ModelCallError", message: expect.stringContaining("no engine") },
  });
  expect(await callsAfter(new Error("no engine"), "yes")).toEqual({ answered: 1 });
});

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
