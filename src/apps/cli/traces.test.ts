import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { openTraceStore } from "../../gateway/traces/store.ts";
import { memoryStore } from "../../images/images.ts";
import { png } from "../../images/pictures.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { runCommandLine } from "./main.ts";

afterEach(() => vi.restoreAllMocks());

test("hone traces prints terminal escapes of models and clients as text", async () => {
  const hostile = "a\x1b[2J\u202e\x9b\x07b";
  const path = join(temporaryFolder("traces"), "traces.db");
  const store = openTraceStore({ path });
  store.session({
    ...{ session: `s${hostile}\nfake line`, attempt: 0, startedMs: 1, endedMs: null, taskId: null },
    ...{ termination: null, reward: null, correct: null, failure: hostile, metadata: {} },
  });
  store.trace({
    ...{ id: "one", session: `s${hostile}\nfake line`, attempt: 0, role: hostile, api: "chat", model: hostile },
    ...{ startedMs: 1, latencyMs: 1, status: "ok", error: null, stopReason: "stop", policyVersion: 0 },
    messages: [
      { role: "user", content: hostile },
      {
        role: "user",
        content: [
          { type: "image", image: memoryStore().add(png(4, 3)) },
          { type: "text", text: "?" },
        ],
      },
    ],
    ...{ tools: null, reply: hostile, params: {}, metadata: {} },
    ...{ promptTokens: new Int32Array(1), tokens: new Int32Array(1), logprobs: new Float32Array(1) },
  });
  store.close();
  let out = "";
  vi.spyOn(process.stdout, "write").mockImplementation((text) => {
    out += text;
    return true;
  });
  const traces = (...words: string[]) => runCommandLine(["traces", ...words, "--store", path]);
  await traces("list");
  expect(out.trimEnd().split("\n")).toHaveLength(2);
  await traces("show", "one");
  expect(out).toContain("> a\\x1b[2J\\u202e\\x9b\\x07b");
  expect(out).toContain("  user: [image 4x3 png]?\n");
  const shown = out.length;
  await traces("show", "one", "--json");
  expect(JSON.parse(out.slice(shown))).toMatchObject({ reply: hostile });
  await traces("list", "--json");
  await traces("export");
  expect(out.replaceAll("\n", "")).not.toMatch(/[\p{Cc}\u202e]/u);
});
