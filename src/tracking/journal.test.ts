import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { journalFile, lastEnd, openJournal } from "./journal.ts";

const root = temporaryFolder("journal");
let folders = 0;
const newFolder = () => {
  const folder = join(root, `${++folders}`);
  mkdirSync(folder);
  return folder;
};
const problems: string[] = [];
const open = (folder: string) => openJournal(folder, { onProblem: (text) => problems.push(text), now: () => 1000 });
const lines = (folder: string) => readFileSync(journalFile(folder), "utf8").split("\n");
const warning = (text: string) => ({ type: "warning", text }) as const;

test("one line per event with its number and time; what other files hold is left out", async () => {
  const folder = newFolder();
  const journal = open(folder);
  journal.event({ type: "run-start", folder: "x", totalSteps: 2, step: 0, history: [], text: ["a model"] });
  journal.event({ type: "rollout-progress", step: 1, done: 0, total: 1, tokens: 0 });
  journal.event({ type: "phase-end", step: 1, name: "rollout", seconds: Number.NaN });
  journal.event({ type: "step-end", step: 1, total: 2, epoch: 0, metrics: { a: 1 }, seconds: 2 });
  await journal.close();
  expect(lines(folder)).toEqual([
    '{"seq":1,"time":1000,"kind":"run-start","folder":"x","totalSteps":2,"step":0,"text":["a model"]}',
    '{"seq":2,"time":1000,"kind":"phase-end","step":1,"name":"rollout","seconds":"NaN"}',
    '{"seq":3,"time":1000,"kind":"step-end","step":1,"total":2,"epoch":0,"seconds":2}',
    "",
  ]);
});

test.each([
  ["a complete file", "", 2],
  ["an incomplete line", '{"seq":2,"ti', 2],
  [
    "a line longer than what is read at first",
    `{"seq":2,"time":1,"kind":"warning","text":"${"x".repeat(100_000)}"}\n`,
    3,
  ],
])("a resumed run continues the numbers after %s, and changes nothing before", async (_name, tail, next) => {
  const folder = newFolder();
  const first = open(folder);
  first.event(warning("first"));
  await first.close();
  appendFileSync(journalFile(folder), tail);
  const before = readFileSync(journalFile(folder), "utf8");
  const second = open(folder);
  second.event(warning("second"));
  await second.close();
  const after = readFileSync(journalFile(folder), "utf8");
  expect(after.startsWith(before)).toBe(true);
  expect(JSON.parse(after.split("\n").at(-2)!)).toMatchObject({ seq: next, text: "second" });
});

test("a journal that cannot be written is reported once and counted", async () => {
  const folder = newFolder();
  mkdirSync(journalFile(folder));
  problems.length = 0;
  const journal = open(folder);
  journal.event(warning("a"));
  journal.event(warning("b"));
  await journal.close();
  expect(journal.lost).toBeGreaterThanOrEqual(2);
  expect(problems).toEqual([expect.stringContaining("run/journal_events_lost")]);
});

test("lines are in the file while the run goes on", async () => {
  const folder = newFolder();
  writeFileSync(journalFile(folder), "");
  const journal = open(folder);
  for (let index = 0; index < 2000; index++) journal.event(warning("x".repeat(100)));
  expect(lines(folder).length).toBeGreaterThan(1000);
  journal.event({ type: "run-end", reason: "done" });
  expect(lines(folder)).toHaveLength(2002);
  await journal.close();
});

test.each([
  ["", undefined],
  ['{"seq":1,"time":1,"kind":"run-end","reason":"stopped"}\n', "stopped"],
  ['{"seq":1,"time":1,"kind":"run-end","reason":"done"}\n{"seq":2,"ti', "done"],
  ['{"seq":1,"time":1,"kind":"run-end","reason":"done"}\n{"seq":2,"time":2,"kind":"run-start"}\n', undefined],
])("how a run ended is read from the file: %j", (text, end) => {
  const folder = newFolder();
  expect(lastEnd(folder)).toBeUndefined();
  writeFileSync(journalFile(folder), text);
  expect(lastEnd(folder)).toBe(end);
});
