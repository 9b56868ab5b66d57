// Slow: processes are killed.
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { beforeEach, describe, expect, test } from "vitest";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder, testFolder } from "../../temporary-folder.fixture.ts";
import type { Trace, TraceSession } from "../types.ts";
import { listSessions } from "./read.ts";
import { openTraceDatabase, openTraceStore } from "./store.ts";

let folder: string;
beforeEach(() => {
  folder = testFolder("traces");
});

const trace = (id: string, more: Partial<Trace> = {}): Trace => ({
  id,
  session: "train-1/sums/3:0",
  attempt: 0,
  role: "agent",
  api: "chat.completions",
  model: "policy",
  startedMs: 1000,
  latencyMs: 12.5,
  status: "ok",
  error: null,
  stopReason: "stop",
  policyVersion: 4,
  messages: [{ role: "user", content: "2 + 2?" }],
  tools: null,
  reply: { role: "assistant", content: "4" },
  params: { temperature: 1 },
  promptTokens: Int32Array.of(1, 2, 3),
  tokens: Int32Array.of(4, 0),
  logprobs: Float32Array.of(-0.5, -0.25),
  metadata: { solver: 1 },
  ...more,
});

const session = (more: Partial<TraceSession> = {}): TraceSession => ({
  session: "train-1/sums/3:0",
  attempt: 0,
  startedMs: 900,
  endedMs: null,
  taskId: "sums/3",
  termination: null,
  reward: null,
  correct: null,
  failure: null,
  metadata: {},
  ...more,
});

describe("the trace store", () => {
  test("returns what was recorded, in the order of the calls, from a file opened again", () => {
    const path = join(folder, "deeper", "traces.db");
    const store = openTraceStore({ path });
    store.session(session());
    store.trace(trace("second", { startedMs: 2000 }));
    store.trace(trace("first"));
    store.session(session({ endedMs: 3000, termination: "env_done", reward: 1, correct: true }));
    store.close();

    const again = openTraceStore({ path, create: false });
    expect(again.traces({ session: "train-1/sums/3:0", attempt: 0 })).toEqual([
      trace("first"),
      trace("second", { startedMs: 2000 }),
    ]);
    expect(again.find("first")).toEqual(trace("first"));
    expect(again.find("third")).toBeUndefined();
    expect(again.sessions()).toEqual([
      {
        ...session({ endedMs: 3000, termination: "env_done", reward: 1, correct: true }),
        ...{ calls: 2, unanswered: 0, promptTokens: 6, sampledTokens: 4 },
      },
    ]);
    again.close();
  });

  test("lists by reward and age, and calls of unannounced sessions", () => {
    const store = openTraceStore({ path: ":memory:" });
    store.session(session({ session: "good", startedMs: 1, reward: 1 }));
    store.session(session({ session: "bad", startedMs: 2, reward: 0 }));
    store.session(session({ session: "unknown", startedMs: 3 }));
    store.trace(trace("stray", { session: "stray", startedMs: 4, status: "failed" }));
    const names = (filter: Parameters<typeof store.sessions>[0]) => store.sessions(filter).map((one) => one.session);
    expect(names({})).toEqual(["good", "bad", "unknown", "stray"]);
    expect(names({ minReward: 0 })).toEqual(["good", "bad"]);
    expect(names({ minReward: 0.5 })).toEqual(["good"]);
    expect(names({ sinceMs: 3 })).toEqual(["unknown", "stray"]);
    expect(names({ limit: 1 })).toEqual(["stray"]);
    expect(store.sessions({ session: "stray" })).toMatchObject([{ calls: 1, unanswered: 1, reward: null }]);
    expect(store.deleteBefore(4)).toEqual({ sessions: 3, traces: 0 });
    expect(names({})).toEqual(["stray"]);
    store.close();
  });

  test("its log is copied back while it is being written", async () => {
    const path = join(folder, "traces.db");
    const problems: string[] = [];
    const store = openTraceStore({ path, onProblem: (text) => problems.push(text) });
    const begin = statSync(path).size;
    for (let index = 0; index < 1500; index++) store.trace(trace(`call-${index}`));
    store.flush();
    // The database file grows only by copying.
    while (statSync(path).size === begin) await new Promise((resolve) => setTimeout(resolve, 5));
    for (let index = 1500; index < 3000; index++) store.trace(trace(`call-${index}`));
    store.close();
    const again = openTraceStore({ path, create: false });
    expect(again.sessions()[0]?.calls).toBe(3000);
    expect(again.find("call-2999")).toEqual(trace("call-2999"));
    expect(problems).toEqual([]);
    again.close();
  });

  test("drops what is older than its retention when it is opened", () => {
    const path = join(folder, "traces.db");
    const day = 86_400_000;
    const store = openTraceStore({ path });
    store.trace(trace("old", { startedMs: Date.now() - 8 * day }));
    store.trace(trace("new", { startedMs: Date.now() - 6 * day }));
    store.close();
    const again = openTraceStore({ path, retentionDays: 7 });
    expect([again.find("old"), again.find("new")?.id]).toEqual([undefined, "new"]);
    again.close();
  });

  test("refuses a file that is not a trace store, and a missing file", () => {
    const path = join(folder, "notes.txt");
    writeFileSync(path, "this file is not a trace store and must not change");
    expect(() => openTraceStore({ path })).toThrow(UserError);
    expect(() => openTraceStore({ path: join(folder, "none.db"), create: false })).toThrow(UserError);
  });

  test("a record that cannot be written is counted as lost and reported; later ones are written", () => {
    const problems: string[] = [];
    const store = openTraceStore({ path: ":memory:", onProblem: (text) => problems.push(text) });
    const circular: Record<string, unknown> = {};
    circular.self = circular;
    store.trace(trace("bad", { metadata: circular }));
    store.flush();
    store.trace(trace("good"));
    expect(store.find("good")?.id).toBe("good");
    expect(store.counts).toEqual({ waiting: 0, written: 1, lost: 1 });
    expect(problems).toHaveLength(1);
    store.close();
  });
});

test("a killed process loses nothing that was flushed, and leaves a valid file", {
  timeout: 30_000,
}, async () => {
  const script = `
    import { openTraceStore } from ${JSON.stringify(new URL("./store.ts", import.meta.url).href)};
    const store = openTraceStore({ path: process.argv[2], flushMs: 5 });
    const base = ${JSON.stringify({ ...trace("x"), promptTokens: 0, tokens: 0, logprobs: 0 })};
    let number = 0;
    setInterval(() => {
      for (let i = 0; i < 200; i++) {
        store.trace({ ...base, id: "t" + number++, promptTokens: new Int32Array(64), tokens: new Int32Array(8), logprobs: new Float32Array(8) });
      }
      if (number % 600 === 0) { store.flush(); console.log(number); }
    }, 1);`;
  const file = join(folder, "child.ts");
  writeFileSync(file, script);
  for (let round = 0; round < 3; round++) {
    const path = join(folder, `${round}.db`);
    const child = spawn(process.execPath, ["--import", "tsx", file, path], { stdio: ["ignore", "pipe", "inherit"] });
    let acknowledged = 0;
    const lines = createInterface({ input: child.stdout });
    await new Promise<void>((resolve, reject) => {
      child.once("close", (code) => reject(new Error(`the child ended by itself with ${code}`)));
      lines.on("line", (line) => {
        acknowledged = Number(line);
        if (acknowledged >= 1800 * (round + 1)) resolve();
      });
    });
    child.kill("SIGKILL");
    await new Promise((resolve) => child.once("close", resolve));
    const store = openTraceStore({ path, create: false });
    const [only] = store.sessions();
    expect(only?.calls).toBeGreaterThanOrEqual(acknowledged);
    expect(store.find(`t${acknowledged - 1}`)?.promptTokens.length).toBe(64);
    store.close();
  }
});

test("the database, its log and its index are readable by their owner only, even if an earlier file was not", () => {
  const folder = temporaryFolder("trace-modes");
  const path = join(folder, "inner", "traces.db");
  const modes = () => readdirSync(dirname(path)).map((name) => statSync(join(dirname(path), name)).mode & 0o777);
  const store = openTraceStore({ path });
  store.session({
    ...{ session: "s", attempt: 0, startedMs: 1, endedMs: null, taskId: null, termination: null },
    ...{ reward: null, correct: null, failure: null, metadata: {} },
  });
  store.flush();
  expect(statSync(dirname(path)).mode & 0o777).toBe(0o700);
  expect(modes()).toEqual([0o600, 0o600, 0o600]);
  store.close();
  chmodSync(path, 0o644);
  openTraceStore({ path }).close();
  expect(modes()[0]).toBe(0o600);
});

test("a FIFO is refused as a store, and a damaged row is named", () => {
  const folder = temporaryFolder("trace-damage");
  const fifo = join(folder, "fifo.db");
  execFileSync("mkfifo", [fifo]);
  for (const create of [true, false]) {
    expect(() => openTraceDatabase(fifo, { create })).toThrow("it is not a regular file");
  }
  const database = openTraceDatabase(join(folder, "traces.db"), { create: true });
  database.exec("INSERT INTO sessions (project, session, attempt, started_ms, metadata) VALUES ('p', 's', 0, 1, '{')");
  expect(() => listSessions(database)).toThrow("a row of the trace store is damaged");
  database.close();
});
