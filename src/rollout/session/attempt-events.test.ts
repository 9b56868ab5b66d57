import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { z } from "zod";
import { defineTool } from "../../agents/define-tool.ts";
import { useTools } from "../../agents/use-tools.ts";
import { ownDistribution } from "../../backends/sampling-params.ts";
import { lines, type Script, scriptedSampler } from "../../testing/scripted-sampler.ts";
import { runRollouts } from "../run-rollouts.ts";
import { createSamplingClient, rolloutSeed } from "./sampling-client.ts";
import type { AttemptEvent } from "./types.ts";

function clientWith(script: Script) {
  const { sampler, chat } = scriptedSampler(script);
  const events: AttemptEvent[] = [];
  const client = createSamplingClient({
    sampler,
    chat,
    defaults: ownDistribution,
    limits: { maxPromptLength: 1000, maxResponseLength: 1000 },
    seedFor: rolloutSeed(1, 2),
    flushMs: 1e6,
    onEvent: (event) => events.push(event),
  });
  return { client, events };
}

test("a rollout reports its stages, its model calls, and the tools that a reply calls", async () => {
  const { client, events } = clientWith(lines({ toolCalls: [{ name: "add", arguments: { a: 1 } }] }, "2"));
  const add = defineTool({ name: "add", description: "adds 1", parameters: { a: z.number() }, run: ({ a }) => a + 1 });
  await runRollouts({
    tasks: [{ id: "sum", row: {}, origin: "test" }],
    n: 1,
    workflow: useTools({ prompt: () => "1 + 1?", tools: [add], reward: () => 1 }),
    client,
    purpose: "train",
    nParallelTasks: 1,
    retryLimit: 0,
    timeoutSeconds: 10,
    raiseOnError: true,
  });
  const text = (event: AttemptEvent) =>
    event.state === "stage"
      ? event.stage
      : event.state === "answer"
        ? `answer ${event.call} ${event.tools ?? ""}`
        : event.state;
  expect(events.map(text)).toEqual([
    ...["start", "set-up", "agent", "call", "answer 0 add", "environment"],
    ...["agent", "call", "answer 1 ", "environment", "reward"],
  ]);
});

test("the wait for other rollouts is apart from sampling", async () => {
  const { client, events } = clientWith(() => "fine");
  const [first, second] = [0, 1].map((rollout) => client.open({ taskId: "t", rollout, attempt: 0, order: 0 }));
  const reply = first!.model.chat([{ role: "user", content: "hello" }]);
  await sleep(40);
  second!.close();
  await reply;
  expect(events.find(({ state }) => state === "answer")).toMatchObject({ queued: expect.toSatisfy((ms) => ms >= 35) });
});
