import { expect, it } from "vitest";
import { readEpisode } from "../../tracking/episodes.ts";
import { toJson } from "../../tracking/json-lines.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "../../trajectories/sample-episodes.fixture.ts";
import { rowText, transcript } from "./terminal.ts";

const user = { role: "user", content: "What is 2+2?" } as const;
const called = { id: "call_0", name: "add", arguments: { a: 2, b: 2 } };
const tools = [{ name: "add", description: "Adds two numbers.", parameters: { properties: { a: {}, b: {} } } }];

const episode = sampleEpisode("sums/0:0", {
  row: { question: "2+2", answer: 4 },
  metrics: { tool_calls: 2, odd: Number.NaN },
  trajectories: [
    sampleTrajectory({
      scores: { own: 0, kind: 0.5 },
      steps: [
        sampleStep([1], [2], { messages: [user], text: "<tool_call>", tools }),
        sampleStep([1, 2], [3], {
          messages: [
            user,
            { role: "assistant", content: "", reasoning: "I add.", toolCalls: [called] },
            { role: "tool", content: "4", toolCallId: "call_0", name: "add" },
          ],
          ...{ tools, text: "It is {" },
          reply: {
            ...{ content: "It is {", toolCalls: [] },
            problems: [{ kind: "malformed_tool_call", message: "no JSON", text: "{" }],
          },
        }),
      ],
    }),
  ],
});

it("hone view shows the task's row, tools, calls and metrics, and says that replies without a tokenizer have one color", () => {
  const kept = readEpisode(toJson(episode));
  const text = transcript(kept, { coloring: "advantage", width: 80, pieces: undefined }).map((row) =>
    rowText(row, false),
  );
  expect(text).toEqual([
    "sums/0:0: env_done, 1.0 s",
    'task: {"question":"2+2","answer":4}',
    "metrics: tool_calls 2, odd NaN",
    "The run folder has no tokenizer, so a reply has one color: its mean advantage.",
    "",
    "solver: reward 0 (own 0, kind 0.5)",
    "",
    "tools: add(a, b): Adds two numbers.",
    "",
    ...["user:", "What is 2+2?", "assistant:", "<tool_call>"],
    "turn 1: 1 tokens of prompt, 1 sampled by version 0, ended by stop",
    "",
    ...["tool add:", "4", "assistant:", "It is {", "malformed_tool_call: no JSON"],
    "turn 2: 2 tokens of prompt, 1 sampled by version 0, ended by stop",
  ]);
});

it("hone view shows calls and thinking of a history that a client rewrote", () => {
  const kept = readEpisode(toJson(episode));
  const rewritten = {
    ...kept,
    trajectories: [{ ...kept.trajectories[0]!, steps: kept.trajectories[0]!.steps.slice(1) }],
  };
  const rows = transcript(rewritten, { coloring: "mask", width: 80, pieces: undefined });
  expect(rows.map((row) => rowText(row, false))).toEqual(
    expect.arrayContaining(["assistant:", "thinking: I add.", 'calls add({"a":2,"b":2})', "tool add:", "4"]),
  );
});
