/** What a workflow learns of the calls of an agent that hides its failures. */
import { expect, test } from "vitest";
import type { GatewayCalls } from "../../agents/types.ts";
import { runWorkflow } from "../../testing/run-workflow.ts";

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
