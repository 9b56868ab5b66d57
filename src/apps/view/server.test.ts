// Slow: runs of 100,000 episodes.
import {
  appendFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openJournal } from "../../tracking/journal.ts";
import { generateRun, generateStep } from "./generate-run.fixture.ts";
import { createLive, openViewer, type Viewer } from "./live.ts";
import type { Anatomy } from "./queries/anatomy.ts";
import type { Curves } from "./queries/curves.ts";
import type { Episode, Group, TaskHistory } from "./queries/episode.ts";
import type { EpisodeList, SearchResults } from "./queries/episodes.ts";
import type { RunConfig, RunDetail } from "./queries/run.ts";
import type { Answer } from "./routes.ts";
import { createApp } from "./server.ts";

const root = temporaryFolder("viewer");
const runs = join(root, "runs");
const run = join(runs, "toy");
const page = join(root, "page");
let viewer: Viewer;
let app: ReturnType<typeof createApp>;

function open(token: string | null = null) {
  viewer = openViewer(runs, join(root, "cache"));
  app = createApp({ viewer, live: createLive(viewer), token, page });
  return app;
}
beforeAll(async () => {
  mkdirSync(page);
  writeFileSync(join(page, "index.html"), "<title>the page</title>");
  generateRun(run, { steps: 3 });
  await writeJournal();
  open();
});
afterAll(() => viewer.close());

async function writeJournal() {
  let now = 1_000_000;
  const journal = openJournal(run, { onProblem: () => {}, now: () => now });
  const rollout = { type: "rollout", step: 1, purpose: "train", task: "arith/0", rollout: 0, attempt: 0 } as const;
  const at = (time: number, event: Parameters<typeof journal.event>[0]) => {
    now = 1_000_000 + time;
    journal.event(event);
  };
  at(0, { type: "run-start", folder: "x", totalSteps: 3, step: 0, history: [], text: ["a tiny model"] });
  at(10, { type: "rollouts-queued", step: 1, purpose: "train", tasks: [{ task: "arith/0", first: 0, count: 2 }] });
  at(20, { ...rollout, state: "start" });
  at(30, { ...rollout, state: "call", call: 0, role: "solver" });
  at(80, { ...rollout, state: "answer", call: 0, prompt: 3, tokens: 10, tools: ["add"], versions: [0, 1], queued: 15 });
  at(90, { ...rollout, state: "call", call: 1, role: "solver" });
  at(100, { ...rollout, state: "answer", call: 1, prompt: 15, tokens: 10, versions: [1, 1] });
  at(110, { ...rollout, state: "stage", stage: "reward" });
  at(150, { ...rollout, state: "end", termination: "env_done", reward: 0 });
  at(160, { type: "phase-end", step: 1, name: "rollout", seconds: 0.15 });
  at(170, { type: "weights", step: 1, version: 1 });
  at(180, { type: "step-end", step: 1, total: 3, epoch: 0, metrics: {}, seconds: 0.18 });
  at(190, { type: "health", text: "the reward is flat" });
  await journal.close();
}

/** @throws with the answer's text unless the status is 200 */
async function get<Answer>(path: string): Promise<Answer> {
  const response = await app.request(`/api${path}`);
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${response.status} ${text}`);
  return JSON.parse(text) as Answer;
}
const filtered = async (filter: string) => {
  const { total, rows } = await get<EpisodeList>(`/runs/toy/episodes?filter=${encodeURIComponent(filter)}`);
  expect(rows).toHaveLength(total);
  return total;
};

describe("queries", () => {
  test("runs, and one run", async () => {
    expect(await get<Answer<"/api/runs">>("/runs")).toMatchObject({
      single: false,
      runs: [{ id: "toy", state: "interrupted", step: 3, totalSteps: 3, model: "tiny", episodes: 48, reward: 0.03 }],
    });
    const detail = await get<RunDetail>("/runs/toy");
    expect(detail).toMatchObject({
      text: ["a tiny model"],
      roles: ["judge", "solver"],
      cursor: 13,
      hasTokenizer: false,
    });
    expect(detail.notes).toEqual([{ kind: "health", step: 2, time: 1_000_190, text: "the reward is flat" }]);
    expect(detail.steps[0]).toMatchObject({ step: 1, train: 16, seconds: 1, phases: { rollout: 0.75 } });
  });

  test("curves: numbers that JSON does not have are text", async () => {
    const { names, steps, columns } = await get<Curves>("/runs/toy/curves?names=reward/mean,actor/grad_norm");
    expect(names).toEqual(["actor/grad_norm", "reward/mean", "time/rollout", "time/step"]);
    expect(steps).toEqual([1, 2, 3]);
    expect(columns).toEqual({ "reward/mean": [0.01, 0.02, 0.03], "actor/grad_norm": ["NaN", "NaN", "NaN"] });
  });

  test("the configuration has origins and no secret, also of a run that did not record their kinds", async () => {
    const { entries } = await get<RunConfig>("/runs/toy/config");
    expect(entries).toMatchObject([
      { key: "model.name", value: "tiny", origin: { kind: "unknown", text: "script" } },
      { key: "rllm.backend", value: "local", origin: { kind: "default", text: "default" } },
      { key: "rllm.sdk.proxy.admin_token", value: "***" },
    ]);
  });

  test.each([
    ["", 48],
    ["step=2", 16],
    ["reward<0.2", 9],
    ["reward<0.2 and role=judge", 3],
    ["reward>=0.5 and role=judge", 0],
    ["role=judge or task=arith/1", 15],
    ["not role=solver", 3],
    ["reward=unknown", 3],
    ["signal=false", 15],
    ["failed=true and message~REFUSED", 3],
    ["termination!=env_done", 3],
    ["correct=true and step>=2", 12],
    ['text~"question 2"', 12],
    ["explanation~PECTED", 45],
    ['explanation~"d 3"', 12],
    ["explanation~3", 12],
    ["explanation!~ected and explanation=unknown", 0],
    ['explanation!~"ted 3" or explanation~zzz', 33],
    [String.raw`message~"\"refused" or message!~"refused "`, 3],
    ['text~"let me ad"', 48],
    ["id=arith/3:1 and retries>0", 3],
    ["version=0", 16],
  ])("filter %s", async (filter, count) => expect(await filtered(filter)).toBe(count));

  test("lists are sorted and paged", async () => {
    const keys = async (query: string) =>
      (await get<EpisodeList>(`/runs/toy/episodes?${query}`)).rows.map(({ key }) => key);
    expect((await keys("limit=3")).join()).toBe("t3.15,t3.14,t3.13");
    expect(await keys("sort=step&limit=2&offset=1")).toEqual(["t1.1", "t1.2"]);
    expect(await keys("sort=reward&order=desc&limit=1&filter=step%3D1")).toEqual(["t1.4"]);
    expect(await keys("sort=reward&limit=1000").then((all) => all.slice(-1)[0])).toBe("t1.11");
  });

  test("a filter of one role names the trajectories that match, and sorts by their reward", async () => {
    const list = (query: string) => get<EpisodeList>(`/runs/toy/episodes?sort=reward&${query}`);
    const judged = await list("filter=role%3Djudge");
    expect(judged.rows.map(({ key, reward, matched }) => [key, reward, matched])).toEqual(
      [3, 2, 1].map((step) => [`t${step}.0`, 0, [1]]),
    );
    const low = await list(`filter=${encodeURIComponent("step=1 and (reward=0.1 or reward=0.25)")}&order=desc`);
    expect(low.rows.map(({ trajectories, matched }) => trajectories[matched![0]!]!.reward)).toEqual([
      0.25, 0.25, 0.25, 0.1,
    ]);
    expect(low.total).toBe(4);
    expect((await list("filter=step%3D1")).rows[0]).not.toHaveProperty("matched");
  });

  test("an episode: turns continue each other, tools and tokens", async () => {
    const shown = await get<Episode>("/runs/toy/episodes/t2.0");
    expect(shown).toMatchObject({
      id: "arith/0:0",
      previous: null,
      next: "t2.1",
      explanation: "expected 0",
      versions: [1, 1],
    });
    expect(shown.trajectories.map(({ role, reward }) => [role, reward])).toEqual([
      ["solver", 0],
      ["judge", 0.1],
    ]);
    expect(shown.detail.map(({ scores }) => scores)).toEqual([{}, { own: 0, kind: 0.2 }]);
    const [first, second] = shown.detail[0]!.turnList;
    expect(first).toMatchObject({
      continues: null,
      promptLength: 3,
      prompt: { ids: [1, 2, 3] },
      reply: { toolCalls: [{ arguments: '{"a": 1}' }] },
    });
    expect(second).toMatchObject({ continues: 0, promptLength: 15, prompt: { ids: [4, 5] } });
    expect(second!.messages).toEqual([{ role: "tool", content: "2", name: "add", toolCallId: "call_0" }]);
    expect(second!.sampled).toMatchObject({ mask: 1, advantage: -0.375, version: 1 });
    expect(second!.sampled.ids).toHaveLength(10);
  });

  test("a group, and the same task in all steps", async () => {
    const found = await get<Group>("/runs/toy/group?step=2&task=arith/1");
    expect(found.groups).toMatchObject([{ role: "solver", size: 4, mean: 1, zeroSignal: "all 4 rewards are 1" }]);
    expect(found.members.map(({ id, zeroSignal }) => [id, zeroSignal])[3]).toEqual(["arith/1:3", true]);
    expect(found.steps).toEqual([1, 2, 3]);
    const history = await get<TaskHistory>("/runs/toy/task?task=arith/1");
    expect(history).toMatchObject({ row: { index: 1 }, steps: [{ step: 1, mean: 1 }, { step: 2 }, { step: 3 }] });
  });

  test("failures of one cause are together, with a filter that finds them", async () => {
    const { failures, retries, terminations } = await get<Answer<"/api/runs/:run/failures">>("/runs/toy/failures");
    expect(failures).toMatchObject([
      { boundary: "environment", count: 3, message: "connection 302 refused", steps: [1, 3] },
    ]);
    expect(await filtered(failures[0]!.filter)).toBe(3);
    expect(retries).toMatchObject([{ boundary: "workflow", count: 12 }]);
    expect(terminations).toEqual([
      { termination: "env_done", count: 45 },
      { termination: "error", count: 3 },
    ]);
  });

  test("full text search shows where", async () => {
    const { total, hits } = await get<SearchResults>("/runs/toy/search?q=question+3&filter=step%3D1&limit=1");
    expect(total).toBe(4);
    const [{ snippet, match }] = hits as [SearchResults["hits"][0]];
    expect(snippet.slice(...match!)).toBe("question");
    const pages = await get<SearchResults>("/runs/toy/search?q=%22Question+3%22&limit=2&offset=3");
    expect(pages.hits.map(({ episode }) => episode.key)).toEqual(["t3.15", "t2.12"]);
    expect(pages.total).toBe(12);
    expect(await get<SearchResults>("/runs/toy/search?q=question&offset=100")).toEqual({ total: 48, hits: [] });
    expect(await get<SearchResults>("/runs/toy/search?q=nowhere")).toEqual({ total: 0, hits: [] });
  });

  test("the anatomy of a step: what each rollout waited for", async () => {
    const found = await get<Anatomy>("/runs/toy/anatomy?step=1");
    expect(found).toMatchObject({ origin: 1_000_000, end: 180, weights: [{ version: 1, at: 170 }] });
    expect(found.phases).toEqual([{ name: "rollout", start: 10, end: 160 }]);
    const spans = found.rollouts[0]!.spans.map(({ kind, start, end }) => `${kind} ${start}-${end}`);
    expect(spans).toEqual([
      "queued 10-20",
      "agent 20-30",
      "sample_queue 30-45",
      "model 45-80",
      "tool 80-90",
      "model 90-100",
      "agent 100-110",
      "grader 110-150",
    ]);
    expect(found.rollouts[0]).toMatchObject({ episode: "t1.0", ended: "done", start: 10, end: 150 });
    expect(found.rollouts[1]).toMatchObject({ rollout: 1, ended: null, end: null });
    expect(found.rollouts[0]!.spans[4]).toMatchObject({ kind: "tool", stage: "add" });
    expect(found.totals).toMatchObject({ model: 45, sample_queue: 15, tool: 10 });
  });

  test.each([
    ["/runs/toy/episodes?filter=rewrd%3C1", 400, { error: expect.stringContaining("not a field"), at: 0, length: 5 }],
    ["/runs/toy/episodes?sort=size", 400, { error: expect.stringContaining("sort=size") }],
    ["/runs/toy/episodes?limit=-1", 400, { error: expect.stringContaining("limit=-1") }],
    ["/runs/toy/episodes/t9.9", 404, { error: expect.stringContaining("t9.9") }],
    ["/runs/toy/group?step=1", 400, { error: "the parameter task is missing" }],
    ["/runs/..%2F..%2Fetc", 404, { error: expect.stringContaining("has no run") }],
    ["/nothing", 404, { error: expect.stringContaining("not a route") }],
  ])("%s is refused", async (path, status, body) => {
    const response = await app.request(`/api${path}`);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject(body);
  });
});

describe("a run that goes on", () => {
  const checksums = () =>
    readdirSync(run, { recursive: true, encoding: "utf8" })
      .filter((name) => statSync(join(run, name)).isFile())
      .map((name) => [name, statSync(join(run, name)).mtimeMs, readFileSync(join(run, name), "utf8")]);
  const count = async () => (await get<RunDetail>("/runs/toy")).episodes;

  test("new steps appear; a resumed run's repeated steps disappear", async () => {
    generateStep(run, 4, {});
    expect(await count()).toBe(64);
    mkdirSync(join(run, "episodes", "discarded"), { recursive: true });
    renameSync(join(run, "episodes", "step-000004.jsonl"), join(run, "episodes", "discarded", "step-000004.jsonl"));
    const metrics = readFileSync(join(run, "metrics.jsonl"), "utf8").split("\n").slice(0, 3);
    rmSync(join(run, "metrics.jsonl"));
    writeFileSync(join(run, "metrics.jsonl"), `${metrics.join("\n")}\n`);
    expect(await count()).toBe(48);
    expect(await filtered('text~"question 1"')).toBe(12);
    expect((await get<Curves>("/runs/toy/curves?names=reward/mean")).steps).toEqual([1, 2, 3]);
  });

  test("a line that is cut off waits for its end", async () => {
    appendFileSync(join(run, "events.jsonl"), '{"seq":14,"time":1000200,"kind":"warning","te');
    expect((await get<RunDetail>("/runs/toy")).cursor).toBe(13);
    appendFileSync(join(run, "events.jsonl"), 'xt":"late"}\n');
    expect(await get<RunDetail>("/runs/toy")).toMatchObject({ cursor: 14, notes: [{}, { text: "late" }] });
  });

  test("the index may be deleted or damaged at any time; the run folder never changes", async () => {
    const before = checksums();
    const cache = join(root, "cache");
    const damageAll = (change: (bytes: Buffer) => Buffer) => {
      const names = readdirSync(cache).filter((name) => !name.endsWith("-shm"));
      for (const name of names) writeFileSync(join(cache, name), change(readFileSync(join(cache, name))));
    };
    for (const damage of [
      () => rmSync(cache, { recursive: true }),
      () => damageAll(() => Buffer.from("not a database")),
      () => damageAll((bytes) => bytes.fill(7, Math.min(bytes.length, 5000))),
      () => damageAll((bytes) => bytes.subarray(0, bytes.length / 2)),
    ]) {
      viewer.close();
      damage();
      open();
      expect(await filtered('text~"question 2"')).toBe(12);
      expect(await count()).toBe(48);
    }
    expect(checksums()).toEqual(before);
  });
});

describe("access", () => {
  const ask = (headers: Record<string, string>, path = "/api/runs") => app.request(path, { headers });

  test("web pages of others are refused, the viewer's own page is not", async () => {
    expect((await ask({ host: "127.0.0.1:7700", origin: "http://127.0.0.1:7700" })).status).toBe(200);
    expect((await ask({ host: "127.0.0.1:7700", origin: "http://evil.example" })).status).toBe(403);
    expect((await ask({ host: "evil.example" })).status).toBe(403);
    const { headers } = await ask({ host: "localhost:7700" });
    expect(headers.get("content-security-policy")).toContain("default-src 'none'");
    expect(headers.get("content-type")).toContain("application/json");
  });

  test("off this machine a token is needed, once in the address", async () => {
    open("t0ken");
    expect((await ask({ host: "gpu:7700" })).status).toBe(401);
    expect((await ask({ host: "gpu:7700" }, "/api/runs?token=wrong")).status).toBe(401);
    const first = await ask({ host: "gpu:7700" }, "/?token=t0ken");
    expect(first.status).toBe(200);
    const cookie = first.headers.get("set-cookie")!;
    expect(cookie).toMatch(/HttpOnly.*SameSite=Strict/i);
    expect((await ask({ host: "gpu:7700", cookie: cookie.split(";")[0]! })).status).toBe(200);
    open();
  });

  test("every address of the page is the page; nothing outside its folder is served", async () => {
    writeFileSync(join(root, "secret.txt"), "secret");
    for (const path of ["/", "/runs/toy/episodes/t1.0", "/../secret.txt", "/%2e%2e/secret.txt"]) {
      expect(await (await app.request(path)).text()).toContain("the page");
    }
  });

  test.each([
    ["/runs/toy", 200],
    ["//evil.example", 400],
    ["https://evil.example", 400],
    ["/\\evil.example", 400],
  ])("POST /api/view %s", async (url, status) => {
    const headers = { "content-type": "application/json" };
    const response = await app.request("/api/view", { method: "POST", headers, body: JSON.stringify({ url }) });
    expect(response.status).toBe(status);
    const plain = await app.request("/api/view", { method: "POST", body: JSON.stringify({ url }) });
    expect(plain.status).toBe(400);
  });
});
