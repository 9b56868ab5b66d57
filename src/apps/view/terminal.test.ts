import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { readEpisode, tokenAdvantages } from "../../tracking/episodes.ts";
import { journalFile } from "../../tracking/journal.ts";
import { toJson } from "../../tracking/json-lines.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "../../trajectories/sample-episodes.fixture.ts";
import { episodeRow, openContent, type Row, rowText, span, tokenStyle, transcript, wrap } from "./terminal.ts";

const run = temporaryFolder("view");

const step = sampleStep([1, 2, 3], [4, 5], {
  text: "ab",
  messages: [{ role: "user", content: "Which letters?" }],
});
const trajectory = { ...sampleTrajectory({ steps: [step], reward: 1 }), advantage: 0.7 };
mkdirSync(join(run, "episodes"));
for (const name of ["step-000001", "step-000002", "step-000002-validation"]) {
  const episodes = ["t/0:0", "t/0:1", "t/1:0"].map((id) => sampleEpisode(id, { trajectories: [trajectory] }));
  writeFileSync(join(run, "episodes", `${name}.jsonl`), episodes.map((one) => `${toJson(one)}\n`).join(""));
}
const line = (at: number) => `${JSON.stringify({ step: at, "reward/mean": at / 2 })}\n`;
writeFileSync(join(run, "metrics.jsonl"), line(1) + line(2));

const cache = temporaryFolder("view-cache");
const content = await openContent(run, "a-run", "", cache);
afterAll(() => content.close());
const textOf = (rows: readonly Row[]) => rows.map((row) => rowText(row, false)).join("\n");

it("shows the run and its steps, the episodes of a step, and the turns of one", () => {
  expect(textOf(content.head(90))).toContain("a-run: 2 steps");
  expect(textOf(content.files.map(content.fileRow))).toMatch(
    /^step {4}1 {2}train {7}reward 0\.500\nstep {4}2 {2}train {7}reward 1\nstep {4}2 {2}validation/,
  );
  const [, second] = content.episodes(content.files[1]!);
  expect(textOf([episodeRow(second!)])).toMatch(/^1 +0\.700 +1 +2 .*t\/0:1/);
  const pieces = (tokens: Iterable<number>) => Array.from(tokens, (token) => `<${token}>`);
  const turns = textOf(transcript(content.read(second!), { coloring: "advantage", width: 90, pieces }));
  expect(turns).toContain("t/0:1");
  expect(turns).toContain("solver: reward 1, advantage +0.7");
  expect(turns).toContain("user:\nWhich letters?\nassistant:\n<4><5>\nturn 1: 3 tokens of prompt, 2 sampled");
});

it("shows what matches a filter", async () => {
  const filtered = await openContent(run, "a-run", "task=t/1 and kind=train", cache);
  expect(filtered.files).toEqual([
    { step: 1, kind: "train" },
    { step: 2, kind: "train" },
  ]);
  expect(filtered.episodes(filtered.files[1]!).map(({ key }) => key)).toEqual(["t2.2"]);
  filtered.close();
});

it("shows where the time of a step went", async () => {
  const folder = temporaryFolder("view-times");
  const events = [
    { kind: "run-start", totalSteps: 1, step: 0, text: [] },
    { kind: "rollouts-queued", purpose: "train", step: 1, tasks: [{ task: "t/0", first: 0, count: 1 }] },
    { kind: "rollout", state: "start" },
    { kind: "rollout", state: "call", call: 0, role: "solver" },
    { kind: "rollout", state: "answer", call: 0, prompt: 1, tokens: 1, versions: [0, 0], queued: 20 },
    { kind: "rollout", state: "end", termination: "env_done", reward: 1 },
    { kind: "step-end", step: 1 },
  ];
  const times = [0, 0, 0, 0, 100, 100, 100];
  const identity = { step: 1, purpose: "train", task: "t/0", rollout: 0, attempt: 0 };
  const lines = events.map((event, at) => toJson({ seq: at + 1, time: 1000 + times[at]!, ...identity, ...event }));
  writeFileSync(journalFile(folder), lines.map((line) => `${line}\n`).join(""));
  const live = await openContent(folder, "a-run", "", cache);
  expect(live.times({ step: 1, kind: "train" }).map((row) => rowText(row, false))).toEqual([
    "time: model 80%, sample queue 20%",
    "slowest: t/0:0 0.1 s, mostly model",
  ]);
  expect(live.times({ step: 2, kind: "train" })).toEqual([]);
  live.close();
});

describe("wrap", () => {
  it("breaks full rows and line ends, keeps styles and makes control characters visible", () => {
    const rows = wrap([span("abc\nd", "1"), span("efgh\u0007")], 3);
    expect(rows.map((row) => rowText(row, false))).toEqual(["abc", "def", "gh\u00b7"]);
    expect(rowText(rows[1]!, true)).toBe("\x1b[1md\x1b[0mef");
  });

  it("counts wide letters twice", () => {
    expect(wrap([span("日本語")], 4).map((row) => rowText(row, false))).toEqual(["日本", "語"]);
  });
});

it("finds the advantage of each token, by trajectory, step or token", () => {
  const kept = { name: "solver", reward: 1, steps: [] };
  expect(tokenAdvantages({ ...kept, advantage: 2 }, 1, 2)).toEqual([2, 2]);
  expect(tokenAdvantages({ ...kept, advantage: [1, [3, 4]] }, 0, 2)).toEqual([1, 1]);
  expect(tokenAdvantages({ ...kept, advantage: [1, [3, 4]] }, 1, 2)).toEqual([3, 4]);
  expect(tokenAdvantages(kept, 0, 2)).toBeUndefined();
});

it("colors by sign and size", () => {
  const styles = [-2, -1, -0.1, 0, 0.1, 1, 2].map((advantage) => tokenStyle("advantage", 0, advantage));
  expect(new Set(styles).size).toBe(7);
  expect(new Set([0, -0.5, -1, -3, -6].map((logprob) => tokenStyle("logprob", logprob, 1))).size).toBe(5);
});

it("shows terminal escapes of models and clients as dots, in the list and in the episode", () => {
  const hostile = "\x1b]0;owned\x07\u202e\x9b2J";
  const step = sampleStep([1], [4], { text: hostile, messages: [{ role: "user", content: hostile }] });
  const made = sampleEpisode(`t${hostile}`, { trajectories: [sampleTrajectory({ steps: [step], reward: 1 })] });
  const episode = readEpisode(toJson(made));
  const row = { ...content.episodes(content.files[0]!)[0]!, id: made.id, preview: hostile };
  for (const pieces of [undefined, () => [hostile]]) {
    const turns = transcript(episode, { coloring: "advantage", width: 90, pieces });
    for (const rows of [[episodeRow(row)], turns]) {
      const shown = rows.map((one) => rowText(one, false)).join("");
      expect(shown).toContain("]0;owned");
      expect(shown).not.toMatch(/[\p{Cc}\u202e]/u);
    }
  }
});

// One episode.
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
