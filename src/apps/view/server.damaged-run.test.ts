// Slow: a server for each kind of damage.
import { execFileSync } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterAll, afterEach, beforeEach, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openJournal } from "../../tracking/journal.ts";
import { openPieces } from "../../tracking/json-lines.ts";
import { openRunFolder, readMetrics } from "../../tracking/run-folder.ts";
import { exportReport } from "./export-report.ts";
import { generateRun } from "./generate-run.fixture.ts";
import { createLive, openViewer, type Viewer } from "./live.ts";
import type { Curves } from "./queries/curves.ts";
import type { Episode } from "./queries/episode.ts";
import type { EpisodeList } from "./queries/episodes.ts";
import type { RunDetail } from "./queries/run.ts";
import type { Answer } from "./routes.ts";
import type { ApiError } from "./server.ts";
import { createApp } from "./server.ts";
import { openContent, rowText } from "./terminal.ts";

const root = temporaryFolder("damaged");
const runs = join(root, "runs");
const bad = join(runs, "bad");
let cache: string;
let viewer: Viewer;
let app: ReturnType<typeof createApp>;

generateRun(join(runs, "good"), { steps: 1, tasks: 1 });
const lines = [
  { seq: 1, time: 1000, kind: "run-start", totalSteps: 3, step: 0, text: ["a model"] },
  {
    seq: 2,
    time: 2000,
    kind: "rollouts-queued",
    purpose: "train",
    step: 1,
    tasks: [{ task: "a", first: 0, count: 1 }],
  },
  { seq: 3, time: 3000, kind: "health", text: "flat" },
];
const journal = (entries: readonly unknown[]) =>
  writeFileSync(join(bad, "events.jsonl"), entries.map((entry) => `${JSON.stringify(entry)}\n`).join(""));

beforeEach(() => {
  rmSync(bad, { recursive: true, force: true });
  generateRun(bad, { steps: 2, tasks: 1, rollouts: 2 });
  journal(lines);
  // The folder's files may get the same inodes again.
  cache = mkdtempSync(join(root, "cache-"));
  open();
});
afterEach(() => viewer.close());
afterAll(() => rmSync(bad, { recursive: true, force: true }));

function open(): void {
  viewer = openViewer(runs, cache);
  app = createApp({ viewer, live: createLive(viewer), token: null, page: root });
}

async function get<Answer>(path: string, status = 200): Promise<Answer> {
  const response = await app.request(`/api${path}`);
  const text = await response.text();
  if (response.status !== status) throw new Error(`${response.status} ${text}`);
  return JSON.parse(text) as Answer;
}
const detail = () => get<RunDetail>("/runs/bad");

test.each([
  [
    "a missing field",
    { seq: 9, time: 9, kind: "rollouts-queued", purpose: "train", step: 1 },
    '"tasks": expected array',
  ],
  ["a mistyped field", { seq: 9, time: 9, kind: "warning", text: 5 }, '"text": expected string, received number'],
  [
    "a number that is not whole",
    { seq: 9, time: 9, kind: "step-end", step: 1.5, total: 1, epoch: 0, seconds: 1 },
    '"step"',
  ],
  ["endless rollouts", { ...lines[1], seq: 9, tasks: [{ task: "a", first: 0, count: 1e12 }] }, '"tasks.0.count"'],
  ["the number of the line before", { ...lines[0] }, "it has the number of the line before, 1"],
  ["a time beyond all dates", { seq: 9, time: 1e300, kind: "warning", text: "" }, '"time"'],
  ["another kind of JSON", [1], "expected object"],
])("a line of the journal with %s is skipped and named, and the rest is shown", async (_what, entry, reason) => {
  journal([lines[0], entry, ...lines.slice(1)]);
  const { problem, problems = [], notes, cursor, totalSteps } = await detail();
  expect([notes.length, cursor, totalSteps]).toEqual([1, 3, 3]);
  expect(problems).toMatchObject([{ file: "events.jsonl", lines: 1, first: 2 }]);
  expect(problem).toContain(`events.jsonl: line 2 is skipped: ${reason}`);
  const { entries } = await get<Answer<"/api/runs/:run/journal">>("/runs/bad/journal");
  expect(entries.map(({ seq }) => seq)).toEqual([1, 2, 3]);
  await get("/runs/bad/anatomy?step=1");
});

test("lines of metrics and episodes that cannot be read are skipped and named", async () => {
  appendFileSync(join(bad, "metrics.jsonl"), '{"step":"3"}\n{"epoch":1}\n{"step":3,"epoch":0,"reward/mean":1}\n');
  appendFileSync(join(bad, "episodes", "step-000002.jsonl"), '{"id":"x","trajectories":[{}]}\n');
  const { problems = [], problem, step, episodes } = await detail();
  expect([step, episodes]).toEqual([3, 4]);
  expect(problems).toEqual([
    {
      file: "episodes/step-000002.jsonl",
      lines: 1,
      first: 3,
      reason: expect.stringMatching(/^"(trajectories|taskId)/),
    },
    { file: "metrics.jsonl", lines: 2, first: 3, reason: '"step": expected number, received string' },
  ]);
  expect(problem).toMatch(/^episodes\/step-000002.jsonl: line 3 is skipped: .*; 1 more file has problems$/);
  expect((await get<Curves>("/runs/bad/curves?names=reward/mean")).steps).toEqual([1, 2, 3]);
  // They are known also to a viewer that does not read the files again.
  viewer.close();
  open();
  expect((await detail()).problem).toBe(problem);
});

const files = ["events.jsonl", "metrics.jsonl", "config.yaml", ".lock", "episodes/step-000001.jsonl", "episodes"];
const replacements: Record<string, (file: string) => void> = {
  "a FIFO": (file) => execFileSync("mkfifo", [file]),
  "a folder": (file) => mkdirSync(file),
  "a link to a device": (file) => symlinkSync("/dev/zero", file),
  "a link out of the run": (file) => symlinkSync(join(runs, "good"), file),
  "a link to itself": (file) => symlinkSync(file, file),
};

test.each(files.flatMap((file) => Object.keys(replacements).map((what) => [file, what] as const)))(
  "%s is %s: the run's row says so, and other runs are listed",
  async (name, what) => {
    if (name === "episodes" && what === "a folder") return expect((await detail()).problems).toEqual([]);
    const file = join(bad, name);
    rmSync(file, { recursive: true, force: true });
    replacements[what]!(file);
    const start = performance.now();
    const list = await get<Answer<"/api/runs">>("/runs");
    expect(list.runs.map(({ id, episodes }) => [id, id === "good" ? episodes : 0]).sort()).toEqual([
      ["bad", 0],
      ["good", 4],
    ]);
    const { problems = [], state } = await detail();
    if (name === ".lock") expect(state).toBe("interrupted");
    else expect(problems.map((problem) => [problem.file, problem.lines])).toEqual([[name, 0]]);
    expect(JSON.stringify(problems)).not.toContain("secret");
    expect(performance.now() - start).toBeLessThan(10_000);
  },
);

test("a line of 200 MB is skipped without being kept in memory", async () => {
  const sizes = { "events.jsonl": 200e6, "metrics.jsonl": 5e6, "episodes/step-000001.jsonl": 70e6 };
  for (const [name, bytes] of Object.entries(sizes)) {
    // The file gets a hole, which reads as zeros.
    truncateSync(join(bad, name), bytes);
    const after = name === "events.jsonl" ? { seq: 4, time: 4, kind: "later" } : { step: 7, kind: "validation" };
    appendFileSync(join(bad, name), `\n${JSON.stringify(after)}\n`);
  }
  const before = process.resourceUsage().maxRSS;
  while (!(await viewer.open("bad").index.refresh()));
  const { problems = [], step } = await detail();
  expect(step).toBe(2);
  expect(problems.map(({ file, first }) => [file, first])).toEqual([
    ["episodes/step-000001.jsonl", 3],
    ["events.jsonl", 4],
    ["metrics.jsonl", 3],
  ]);
  expect(problems[1]!.reason).toBe("it has 200 MB; at most 4.2 MB are read");
  expect((await get<Curves>("/runs/bad/curves?kind=validation")).steps).toEqual([7]);
  expect((await get<Answer<"/api/runs/:run/journal">>("/runs/bad/journal?after=3")).cursor).toBe(4);
  expect(process.resourceUsage().maxRSS - before).toBeLessThan(150_000);
  expect(() => readMetrics(bad)).toThrow("metrics.jsonl:3: the line is too long");
});

test("a last line that is cut off neither delays an answer nor hangs the terminal and the report", async () => {
  for (const name of ["events.jsonl", "metrics.jsonl"]) appendFileSync(join(bad, name), '{"step":3,"se');
  const start = performance.now();
  const content = await openContent(bad, "bad", "", cache);
  expect(content.head(80).map((row) => rowText(row, false))[0]).toBe("bad: 2 steps");
  content.close();
  expect(await viewer.open("bad").index.refresh()).toBe(true);
  expect((await detail()).problems).toEqual([]);
  expect(performance.now() - start).toBeLessThan(10_000);
});

test("the terminal and the report name what cannot be read", async () => {
  appendFileSync(join(bad, "events.jsonl"), "?\n");
  const sentence = "events.jsonl: line 4 is skipped: it is not JSON";
  const content = await openContent(bad, "bad", "", cache);
  expect(content.head(80).map((row) => rowText(row, false))).toContain(sentence);
  content.close();
  const page = join(root, "built");
  mkdirSync(page);
  for (const name of ["index.html", "page.js", "page.css"]) writeFileSync(join(page, name), "<head></head>");
  expect(await exportReport({ run: bad, output: join(root, "report.html"), limit: 2, page, cache })).toMatchObject({
    problem: sentence,
  });
});

test("an episode whose file was replaced after it was indexed is not found; links are not followed to it", async () => {
  const { rows } = await get<EpisodeList>("/runs/bad/episodes?filter=step%3D1");
  const { index } = viewer.open("bad");
  index.refresh = async () => true;
  const file = join(bad, "episodes", "step-000001.jsonl");
  for (const replace of [() => writeFileSync(file, "?"), () => rmSync(file)]) {
    replace();
    const { error } = await get<ApiError>(`/runs/bad/episodes/${rows[0]!.key}`, 404);
    expect(error).toBe("episodes/step-000001.jsonl has changed since it was indexed");
  }
  symlinkSync("/dev/zero", file);
  expect((await get<ApiError>(`/runs/bad/episodes/${rows[0]!.key}`, 400)).error).toMatch(/is a link/);
});

test("a tokenizer or an image that is a FIFO or a link is not read", async () => {
  for (const name of ["tokenizer/tokenizer.json", `media/${"0".repeat(64)}.png`]) {
    mkdirSync(dirname(join(bad, name)));
    replacements["a FIFO"]!(join(bad, name));
  }
  expect(openPieces(bad)).toBeUndefined();
  expect(await get<Episode>("/runs/bad/episodes/t1.0")).toMatchObject({ id: "arith/0:0" });
  expect((await get<ApiError>(`/runs/bad/media/${"0".repeat(64)}`, 400)).error).toContain("is a FIFO");
  symlinkSync(join(runs, "good"), join(runs, "link"));
  for (const path of [
    "/runs/link",
    "/runs/..",
    "/runs/%2e%2e%2fruns%2fgood",
    "/runs/good%2f..%2fbad",
    "/runs/bad%00",
  ]) {
    await get(path, 404);
  }
  rmSync(join(runs, "link"));
});

test("training does not block on a journal or a lock that is a FIFO", async () => {
  for (const name of ["events.jsonl", ".lock"]) {
    rmSync(join(bad, name), { force: true });
    replacements["a FIFO"]!(join(bad, name));
  }
  const problems: string[] = [];
  const written = openJournal(bad, { onProblem: (text) => problems.push(text) });
  written.event({ type: "run-end", reason: "done" });
  await written.close();
  expect([written.lost > 0, problems.length]).toEqual([true, 1]);
  expect(problems[0]).toContain("events.jsonl is a FIFO");
  expect(() => openRunFolder(bad)).toThrow(".lock is a FIFO");
});

test("answers are compressed for clients that accept it, and events are not", async () => {
  const answer = await app.request("/api/runs/bad/episodes", { headers: { "accept-encoding": "gzip, br" } });
  expect(answer.headers.get("content-encoding")).toBe("gzip");
  const { total } = (await new Response(
    answer.body!.pipeThrough(new DecompressionStream("gzip")),
  ).json()) as EpisodeList;
  expect(total).toBe(4);
  expect((await app.request("/api/runs/bad")).headers.get("content-encoding")).toBeNull();
  const ended = new AbortController();
  const request = new Request("http://x/api/events", { headers: { "accept-encoding": "gzip" }, signal: ended.signal });
  const events = await app.request(request);
  expect(events.headers.get("content-encoding")).toBeNull();
  await events.body!.cancel();
});
