import { expect, test } from "vitest";
import { lines, runWorkflow } from "../../testing/scripted.ts";
import { atifEpisode } from "./atif.fixture.ts";
import { atifRows, toAtif } from "./atif.ts";

test("each call's tokens are at its step, results are observations, side calls are documents of their own", async () => {
  const episode = await atifEpisode();
  const document = toAtif(episode, { agent: { name: "pi", version: "0.85.1" }, model: "policy" })!;
  expect(document.steps.map(({ source }) => source)).toEqual(["system", "user", "agent", "agent", "user", "agent"]);
  expect(document.steps.map(({ step_id }) => step_id)).toEqual([1, 2, 3, 4, 5, 6]);
  const [own, side] = episode.trajectories;
  const sampled = document.steps.flatMap(({ metrics }) => (metrics ? [metrics.completion_token_ids] : []));
  expect(sampled).toEqual(own!.steps.map(({ tokens }) => [...tokens]));
  expect(document.steps.flatMap(({ metrics }) => (metrics ? [metrics.prompt_token_ids] : []))).toEqual(
    own!.steps.map(({ promptTokens }) => [...promptTokens]),
  );
  expect(document.steps[2]).toMatchObject({
    tool_calls: [{ function_name: "add", arguments: { a: 1 } }],
    observation: { results: [{ source_call_id: document.steps[2]?.tool_calls?.[0]?.tool_call_id, content: "1" }] },
  });
  expect(document).toMatchObject({ agent: { name: "pi" }, extra: { reward: 1, correct: true } });
  expect(document.subagent_trajectories).toMatchObject([
    { trajectory_id: "row/0:0/side/0", agent: { name: "side" }, extra: { reward: null } },
  ]);
  expect(side?.steps).toHaveLength(1);
  expect(atifRows(document)).toMatchObject([
    {
      messages: [
        { role: "system" },
        { role: "user" },
        { role: "assistant", tool_calls: [{ function: { name: "add", arguments: '{"a":1}' } }] },
        { role: "tool", content: "1" },
        { role: "assistant", content: "It is 1." },
        { role: "user", content: "thanks" },
        { role: "assistant", content: "It is 1." },
      ],
      tools: [{ function: { name: "add" } }],
    },
    { messages: [{ role: "user" }, { role: "assistant" }] },
  ]);
});

test("a reply that the client wrote itself is copied context, and an episode without a call has no document", async () => {
  const [episode] = await runWorkflow({
    rows: [{}],
    reply: lines("b"),
    workflow: async (_, { model }) => {
      const messages = [{ role: "user", content: "1" } as const, { role: "assistant", content: "a" } as const];
      await model.chat([...messages, { role: "user", content: "2" }]);
      return 0;
    },
  });
  const copied = toAtif(episode!)!.steps.map(({ is_copied_context }) => is_copied_context ?? false);
  expect(copied).toEqual([false, true, false, false]);
  const [none] = await runWorkflow({ rows: [{}], reply: lines("b"), workflow: () => 1 });
  expect(toAtif(none!)).toBeUndefined();
});
