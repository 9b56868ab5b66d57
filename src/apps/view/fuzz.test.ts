/**
 * Damages a run folder at random and asks for everything that the viewer shows of it. Each answer must come in time, with
 * a typed body and without an error of Hone, and another run in the same folder must not change.
 */
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { HoneError } from "../../base/errors.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { fuzzCases, fuzzTimeout } from "../../fuzz-time.fixture.ts";
import { folderStore, mediaFolder } from "../../images/images.ts";
import { png } from "../../images/pictures.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openJournal } from "../../tracking/journal.ts";
import { originsFile } from "../../tracking/run-folder.ts";
import { damageRun } from "./damage-run.fixture.ts";
import { databaseFile, removeDatabase } from "./database.ts";
import { exportReport } from "./export-report.ts";
import { generateRun } from "./generate-run.fixture.ts";
import { createLive, openViewer, type Viewer } from "./live.ts";
import { createApp } from "./server.ts";
import { episodeRow, openContent, transcript } from "./terminal.ts";

const root = temporaryFolder("viewer-fuzz");
const runs = join(root, "runs");
const whole = join(root, "whole");
const cache = join(root, "cache");
const page = join(root, "page");
const tokenizer = fileURLToPath(new URL("../../chat/fixtures/chatml", import.meta.url));
let viewer: Viewer;
let app: ReturnType<typeof createApp>;
let hash: string;
let undamaged: string[];

beforeAll(async () => {
  const image = folderStore(join(whole, mediaFolder)).add(png(20, 28));
  ({ hash } = image);
  generateRun(whole, { steps: 2, tasks: 2, rollouts: 2, tokens: 6, images: [image] });
  writeFileSync(join(whole, originsFile), '{"model.name": "script"}\n');
  await writeJournal();
  mkdirSync(join(whole, "tokenizer"));
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    cpSync(join(tokenizer, name), join(whole, "tokenizer", name));
  }
  generateRun(join(runs, "good"), { steps: 1, tasks: 1, rollouts: 2, tokens: 4 });
  mkdirSync(page);
  for (const name of ["index.html", "page.js", "page.css"]) writeFileSync(join(page, name), "<head></head>");
  viewer = openViewer(runs, cache);
  app = createApp({ viewer, live: createLive(viewer), token: null, page });
  undamaged = await goodAnswers();
});
afterAll(() => viewer.close());

async function writeJournal(): Promise<void> {
  let now = 1_000_000;
  const journal = openJournal(whole, { onProblem: () => {}, now: () => (now += 10) });
  const rollout = { type: "rollout", step: 1, purpose: "train", task: "arith/0", rollout: 0, attempt: 0 } as const;
  const events: Parameters<typeof journal.event>[0][] = [
    { type: "run-start", folder: "x", totalSteps: 3, step: 0, history: [], text: ["a tiny model"] },
    { type: "setup-status", text: "loading" },
    { type: "rollouts-queued", step: 1, purpose: "train", tasks: [{ task: "arith/0", first: 0, count: 2 }] },
    { ...rollout, state: "start" },
    { ...rollout, state: "call", call: 0, role: "solver" },
    { ...rollout, state: "answer", call: 0, prompt: 3, tokens: 10, tools: ["add"], versions: [0, 1], queued: 15 },
    { ...rollout, state: "stage", stage: "reward" },
    { ...rollout, state: "end", termination: "env_done", reward: 0 },
    { type: "phase-end", step: 1, name: "rollout", seconds: 0.15 },
    { type: "weights", step: 1, version: 1 },
    { type: "step-end", step: 1, total: 3, epoch: 0, metrics: {}, seconds: 0.18 },
    { type: "validation-start", step: 1 },
    { type: "validation-end", step: 1, metrics: {}, seconds: 0.1 },
    { type: "health", text: "the reward is flat" },
    { type: "run-end", reason: "done", report: ["better"] },
  ];
  for (const event of events) journal.event(event);
  await journal.close();
}

const filters = ["reward<0.2 and role=judge", 'text~"question"', "explanation~pect", "failed=true or signal=false"];
/** Routes of one run. */
const paths = [
  ...["", "/config", "/curves", "/curves?kind=validation&names=val/reward", "/failures", "/journal?limit=5"],
  ...["/anatomy?step=1", "/anatomy?step=1&kind=validation", "/groups?step=1", "/group?step=1&task=arith/0"],
  ...["/task?task=arith/0", "/search?q=question", "/journal?after=3&kinds=health,rollout", "/episodes?sort=reward"],
  ...filters.map((filter) => `/episodes?sort=advantage&filter=${encodeURIComponent(filter)}`),
  ...[
    "/episodes/t1.0",
    "/episodes/t1.3",
    "/episodes/t2.1",
    "/episodes/..%2f..%2fconfig.yaml",
    "/..%2fgood",
    "/%E0%A4%A",
  ],
];

const number = z.union([z.number(), z.enum(["NaN", "Infinity", "-Infinity"])]);
const runRow = z.looseObject({
  id: z.string(),
  state: z.enum(["live", "done", "stopped", "failed", "interrupted"]),
  step: z.int().nonnegative(),
  totalSteps: z.number().nullable(),
  started: z.number().nullable(),
  updated: z.number().nullable(),
  model: z.string().nullable(),
  episodes: z.int().nonnegative(),
  reward: number.nullable(),
  rewards: z.array(number.nullable()).max(60),
  problem: z.string().optional(),
});
const problem = z.object({ error: z.string().min(1), hint: z.string().optional() });
const episodeRows = z.looseObject({
  rows: z.array(
    z.looseObject({
      key: z.string(),
      task: z.string(),
      rollout: z.int(),
      reward: number.nullable(),
      advantage: number.nullable(),
      tokens: z.int(),
      seconds: z.number(),
      preview: z.string(),
      trajectories: z.array(z.looseObject({ role: z.string(), reward: number.nullable() })),
    }),
  ),
});
const bodies: readonly [RegExp, z.ZodType][] = [
  [/^\/runs$/, z.looseObject({ runs: z.array(runRow) })],
  [/^\/runs\/\w+$/, runRow.extend({ problems: z.array(z.looseObject({ reason: z.string() })), cursor: z.int() })],
  [/\/episodes(\?|$)/, episodeRows],
];

const statuses = new Map<string, number>();
/** Limits processor time; on a busy machine an answer takes longer. */
const maxMilliseconds = 5000;
const hangMilliseconds = 120_000;
let slowest = { milliseconds: 0, path: "", case: 0 };
let current = 0;

async function ask(path: string, refusals = true): Promise<string> {
  const start = performance.now();
  const used = process.cpuUsage();
  const response = await app.request(`/api${path}`);
  const text = await response.text();
  expect(performance.now() - start).toBeLessThan(hangMilliseconds);
  const { user, system } = process.cpuUsage(used);
  const milliseconds = (user + system) / 1000;
  const { status } = response;
  statuses.set(String(status), (statuses.get(String(status)) ?? 0) + 1);
  if (milliseconds > slowest.milliseconds) slowest = { milliseconds, path, case: current };
  expect(milliseconds).toBeLessThan(maxMilliseconds);
  expect([path, status, status === 200 ? "" : text]).toEqual([
    path,
    refusals ? expect.toBeOneOf([200, 400, 404]) : 200,
    expect.anything(),
  ]);
  if (response.headers.get("content-type")?.includes("json")) {
    const body: unknown = JSON.parse(text);
    const schema = status === 200 ? bodies.find(([pattern]) => pattern.test(path))?.[1] : problem;
    expect(schema?.safeParse(body).error).toBeUndefined();
  }
  return text;
}

async function goodAnswers(): Promise<string[]> {
  const list = JSON.parse(await ask("/runs", false)) as { runs: { id: string }[] };
  const own = ["", "/episodes", "/curves", "/episodes/t1.0"].map((path) => ask(`/runs/good${path}`, false));
  return [JSON.stringify(list.runs.find(({ id }) => id === "good")), ...(await Promise.all(own))];
}

/** Live events until the index is up to date; a failure is an event, too. */
async function listen(name: string): Promise<void> {
  const response = await app.request(`/api/events?run=${name}&after=0`);
  const reader = response.body!.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let text = "";
  while (!text.includes("event: changed\n")) {
    const { value, done } = await reader.read();
    text += value ?? "";
    expect([done, text.includes("event: problem")]).toEqual([false, false]);
  }
  await reader.cancel();
}

/** What Hone refuses with a sentence is fine. */
async function unlessRefused(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof HoneError)) throw error;
  }
}

async function readAsText(run: string): Promise<void> {
  const content = await openContent(run, "bad", "", cache);
  try {
    content.head(80);
    for (const file of content.files) {
      content.fileRow(file);
      content.times(file);
      for (const row of content.episodes(file)) {
        episodeRow(row);
        transcript(content.read(row), { coloring: "advantage", width: 80, pieces: content.pieces });
      }
    }
  } finally {
    content.close();
  }
}

/** Appends the rest of a file while it is viewed, cut at any byte. */
async function appendInPieces(run: string, name: string, random: () => number): Promise<void> {
  const file = join(run, name);
  const bytes = readFileSync(file);
  let at = Math.floor(random() * bytes.length);
  writeFileSync(file, bytes.subarray(0, at));
  while (at < bytes.length) {
    const next = Math.min(bytes.length, at + Math.ceil((random() * bytes.length) / 2));
    writeFileSync(file, bytes.subarray(at, next), { flag: "a" });
    at = next;
    await ask("/runs/live", false);
  }
}

test("a damaged run answers in time, with typed bodies, and other runs stay as they are", {
  timeout: fuzzTimeout,
}, async () => {
  const kinds = new Map<string, number>();
  const memory = process.memoryUsage().rss;
  let cases = 0;
  let highest = 0;
  for (const index of fuzzCases(12, 0.98)) {
    const random = uniforms(deriveSeed(1, "viewer", index));
    current = index;
    const name = `bad_${index}`;
    const run = join(runs, name);
    cpSync(whole, run, { recursive: true });
    const done = damageRun(run, random);
    try {
      await ask("/runs", false);
      for (const path of paths) await ask(`/runs/${name}${path}`);
      await ask(`/runs/${name}/media/${hash}`);
      if (viewer.names().includes(name)) await listen(name);
      await unlessRefused(() => readAsText(run));
      if (index % 4 === 0) {
        const output = join(root, "report.html");
        await unlessRefused(async () => void (await exportReport({ run, output, limit: 3, page, cache })));
      }
      expect(await goodAnswers()).toEqual(undamaged);
      // A damage that is added while the run is viewed.
      if (random() < 0.3) {
        done.push(...damageRun(run, random));
        for (const path of ["", "/episodes", "/episodes/t1.0", "/anatomy?step=1", "/journal"])
          await ask(`/runs/${name}${path}`);
      }
    } catch (error) {
      throw new Error(`case ${index}: ${done.join(", ")}`, { cause: error });
    }
    cases++;
    for (const kind of done) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    highest = Math.max(highest, process.memoryUsage().rss - memory);
    forget(name);
  }
  expect(highest).toBeLessThan(1_200_000_000);
  const counts = (found: Map<string, number>) =>
    [...found]
      .sort()
      .map(([what, count]) => `${what}: ${count}`)
      .join(", ");
  process.stdout.write(
    `fuzz of run folders: ${cases} cases; answers ${counts(statuses)}; damages ${counts(kinds)}; slowest ` +
      `${slowest.milliseconds.toFixed(0)} ms of processor time (${slowest.path}, case ${slowest.case}); memory +${(highest / 1e6).toFixed(0)} MB\n`,
  );
});

test("a run that is written in pieces is read to its end", { timeout: fuzzTimeout }, async () => {
  let cases = 0;
  for (const index of fuzzCases(2, 0.02)) {
    const random = uniforms(deriveSeed(2, "viewer", index));
    const run = join(runs, "live");
    cpSync(whole, run, { recursive: true });
    for (const name of ["events.jsonl", "metrics.jsonl"]) await appendInPieces(run, name, random);
    expect(JSON.parse(await ask("/runs/live", false))).toMatchObject({
      cursor: 15,
      step: 2,
      state: "done",
      problems: [],
    });
    forget("live");
    cases++;
  }
  process.stdout.write(`fuzz of runs written in pieces: ${cases} cases\n`);
});

function forget(name: string): void {
  const database = databaseFile(join(runs, name), cache);
  rmSync(join(runs, name), { recursive: true });
  // The viewer closes the index of a run that no longer exists.
  expect(() => viewer.open(name)).toThrow("has no run");
  removeDatabase(database);
}
