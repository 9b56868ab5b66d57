import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { readEpisode, tokenAdvantages } from "../../tracking/episodes.ts";
import { journalFile } from "../../tracking/journal.ts";
import { toJson } from "../../tracking/json-lines.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "../../trajectories/sample-episodes.fixture.ts";
import {
  type BrowserContent,
  type BrowserState,
  draw,
  openContent,
  openState,
  press,
  rowText,
  span,
  tokenStyle,
  wrap,
} from "./terminal.ts";

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
const pieces = (tokens: Iterable<number>) => Array.from(tokens, (token) => `<${token}>`);
const opened = await openContent(run, "a-run", "", cache);
afterAll(() => opened.close());
const content: BrowserContent = { ...opened, pieces };
const size = { columns: 90, rows: 30 };
const text = (state: BrowserState) =>
  draw(state, content, size)
    .map((row) => rowText(row, false))
    .join("\n");

function walk(...names: string[]): BrowserState {
  return names.reduce((state, name) => press(state, name, content, size)!, openState(content));
}

describe("the browser", () => {
  it("begins with the run and its steps, the last one selected", () => {
    const shown = text(openState(content));
    expect(shown).toContain("a-run: 2 steps");
    expect(shown).toContain("  step    2  train       reward 1");
    expect(shown).toContain("> step    2  validation");
    expect(shown.split("\n")).toHaveLength(size.rows - 1);
  });

  it("opens episodes, then the turns of one, and goes back", () => {
    expect(text(walk("up", "enter"))).toMatch(/> 1 +0\.700 +1 +2 /);
    const turns = text(walk("up", "enter", "down", "enter"));
    expect(turns).toContain("t/0:1");
    expect(turns).toContain("solver: reward 1, advantage +0.7");
    expect(turns).toContain("user:\nWhich letters?\nassistant:\n<4><5>\nturn 1: 3 tokens of prompt, 2 sampled");
    expect(walk("up", "enter", "down", "enter", "left", "left")).toEqual(walk("up", "enter", "down", "left"));
  });

  it("goes from episode to episode, and through the colorings", () => {
    expect(text(walk("enter", "enter", "n"))).toContain("t/0:1");
    expect(text(walk("enter", "enter", "n", "n", "n", "p"))).toContain("t/0:1");
    expect(text(walk("enter", "enter", "c"))).toContain("logprob:");
    expect(walk("c", "c", "c").coloring).toBe("advantage");
  });

  it("ends with q, and ignores unknown keys", () => {
    expect(press(walk("enter"), "q", content, size)).toBeUndefined();
    expect(walk("enter", "x", "")).toEqual(walk("enter"));
  });

  it("fits any terminal", () => {
    for (const rows of [1, 2, 3, 8]) {
      const small = { columns: 10, rows };
      const drawn = draw(walk("enter", "enter"), content, small);
      expect(drawn.every((row) => rowText(row, false).length <= 10)).toBe(true);
      expect(drawn.length).toBeLessThanOrEqual(Math.max(2, rows));
    }
  });
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
    const known: BrowserContent = { ...content, episodes: () => [row], read: () => episode, pieces };
    for (const screen of ["episodes", "episode"] as const) {
      const rows = draw({ ...openState(known), screen }, known, size).map((row) => rowText(row, false));
      expect(rows.join("")).toContain("]0;owned");
      expect(rows.join("")).not.toMatch(/[\p{Cc}\u202e]/u);
    }
  }
});
