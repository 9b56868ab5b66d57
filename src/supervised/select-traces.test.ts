import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { runHere } from "../cli/run-here.fixture.ts";
import { openTraceStore } from "../gateway/traces/open-trace-store.ts";
import { readSpans } from "../gateway/traces/otlp.ts";
import type { Trace } from "../gateway/traces/types.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

afterEach(() => vi.restoreAllMocks());

const call: Omit<Trace, "id" | "session" | "messages" | "reply" | "tokens"> = {
  ...{ attempt: 0, role: "agent", api: "chat.completions", model: "m", startedMs: 1, latencyMs: 1, status: "ok" },
  ...{ error: null, stopReason: "stop", policyVersion: 0, tools: null, params: {}, metadata: {} },
  ...{ promptTokens: new Int32Array(1), logprobs: new Float32Array(1) },
};

const ended = {
  ...{ attempt: 0, startedMs: 1, endedMs: 2, termination: "env_done", correct: null, failure: null, metadata: {} },
};

/** Two tasks with four sessions each; the rewards, and the number of sampled tokens. */
function storeOf(path: string): void {
  const store = openTraceStore({ path });
  for (const [task, rewards] of Object.entries({ easy: [1, 1, 1, null], hard: [0, 0.5, 1, 0.5] })) {
    for (const [index, reward] of rewards.entries()) {
      const session = `${task}-${index}`;
      store.session({ ...ended, session, taskId: task, reward });
      const reply = { role: "assistant", content: task === "easy" && index < 2 ? "same" : `reply ${index}` };
      const messages = [{ role: "user", content: task }];
      store.trace({ ...call, id: session, session, messages, reply, tokens: new Int32Array(4 - index) });
    }
  }
  store.close();
}

async function traces(...words: string[]) {
  const { out, errors: told } = await runHere("traces", "export", ...words);
  const rows = out.split("\n").filter((line) => line.startsWith("{"));
  return { rows: rows.map((line) => JSON.parse(line)), told };
}

const replies = (rows: { messages: { content: string }[] }[]) =>
  rows.map(({ messages }) => [messages[0]!.content, messages.at(-1)!.content]);

test("chosen sessions of the trace store become rows and pairs", async () => {
  const folder = temporaryFolder("select-traces");
  const path = join(folder, "traces.db");
  storeOf(path);
  const choose = (...words: string[]) => traces("--store", path, "--as", "sft", ...words);

  const best = await choose("--select", "best");
  expect(replies(best.rows)).toEqual([
    ["easy", "reply 2"],
    ["hard", "reply 2"],
  ]);
  expect(best.told).toContain("8 sessions of 2 tasks; left out: 1 sessions without a reward");
  expect(replies((await choose("--select", "correct", "--max-per-task", "2", "--dedup")).rows)).toEqual([
    ["easy", "same"],
    ["easy", "reply 2"],
    ["hard", "reply 2"],
  ]);
  expect((await choose("--select", "all")).rows).toHaveLength(7);
  expect((await choose()).rows).toHaveLength(8);
  expect(replies((await choose("--filter", "0 < avg < 1", "--select", "shortest")).rows)).toEqual([
    ["hard", "reply 2"],
  ]);
  const { rows: pairs } = await traces("--store", path, "--as", "pairs");
  expect(pairs).toEqual([
    {
      prompt: [{ role: "user", content: "hard" }],
      chosen: [{ role: "assistant", content: "reply 2" }],
      rejected: [{ role: "assistant", content: "reply 0" }],
    },
  ]);

  const output = join(folder, "rows.jsonl");
  await choose("--val-fraction", "0.99", "-o", output);
  expect(existsSync(join(folder, "rows-val.jsonl"))).toBe(true);
  expect((await traces("--store", path, "--select", "best")).told).toContain("use --as sft");
  expect((await choose("--val-fraction", "0.5")).told).toContain("--output");
});

test("imported spans are attempts at their first prompt", async () => {
  const path = join(temporaryFolder("select-spans"), "traces.db");
  const file = new URL("../gateway/traces/fixtures/ai-sdk-7.0.173.json", import.meta.url);
  const read = await readSpans(JSON.parse(readFileSync(file, "utf8")), (trace) => trace);
  const store = openTraceStore({ path, project: "spans" });
  const sessions = [...new Set(read.traces.map(({ session }) => session))];
  for (const [attempt, reward] of [0.2, 0.9].entries()) {
    for (const trace of read.traces) {
      store.trace({ ...trace, id: `${trace.id}-${attempt}`, session: `${trace.session}-${attempt}` });
    }
    for (const session of sessions) store.session({ ...ended, session: `${session}-${attempt}`, taskId: null, reward });
  }
  store.close();
  const { rows, told } = await traces("--store", path, "--as", "sft", "--select", "best");
  expect(told).toContain(`${2 * sessions.length} sessions of ${sessions.length} tasks`);
  expect(rows.length).toBeGreaterThan(0);
});
