import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { testGateway } from "../open-gateway.fixture.ts";
import { exportTraces } from "./export-traces.ts";
import { openTraceStore } from "./open-trace-store.ts";
import { readSpans } from "./otlp.ts";

/** Recorded from AI SDK 7.0.173 with `registerTelemetry(new OpenTelemetry())` and OpenTelemetry's exporter for OTLP/HTTP. */
const aiSdkFile = fileURLToPath(new URL("fixtures/ai-sdk-7.0.173.json", import.meta.url));
const aiSdk = JSON.parse(readFileSync(aiSdkFile, "utf8"));

const attribute = (key: string, value: unknown) => ({
  key,
  value:
    typeof value === "number"
      ? { doubleValue: value }
      : { stringValue: typeof value === "string" ? value : JSON.stringify(value) },
});
const spans = (
  ...list: {
    attributes?: Record<string, unknown>;
    events?: [string, Record<string, unknown>][];
    [key: string]: unknown;
  }[]
) => ({
  resourceSpans: [
    {
      scopeSpans: [
        {
          spans: list.map(({ attributes = {}, events = [], ...span }, index) => ({
            ...{
              traceId: "t",
              spanId: String(index),
              name: "chat",
              startTimeUnixNano: "1000000",
              endTimeUnixNano: "3000000",
            },
            attributes: Object.entries(attributes).map(([key, value]) => attribute(key, value)),
            events: events.map(([name, values]) => ({
              name,
              attributes: Object.entries(values).map(([key, value]) => attribute(key, value)),
            })),
            ...span,
          })),
        },
      ],
    },
  ],
});

const conversation = {
  messages: [
    { role: "system", content: "Be brief." },
    { role: "user", content: "1 + 2?" },
    {
      role: "assistant",
      content: "",
      tool_calls: [{ type: "function", function: { name: "add", arguments: '{"a":1,"b":2}' } }],
    },
    { role: "tool", tool_call_id: "call_1", content: "3" },
    { role: "assistant", content: "It is 3." },
  ],
  tools: [{ type: "function", function: { name: "add", description: "Adds.", parameters: { type: "object" } } }],
};

test("an agent of the AI SDK 7 becomes one task and one row for supervised training", () => {
  const store = openTraceStore({ path: ":memory:" });
  const { traces, skipped } = readSpans(aiSdk);
  for (const trace of traces) store.trace(trace);
  expect(skipped).toEqual({ "a span of execute_tool": 1, "a span of agent_step": 2, "a span of invoke_agent": 1 });
  expect([...exportTraces(store, "sft", {})]).toMatchObject([conversation]);
  expect([...exportTraces(store, "rows", {})]).toMatchObject([
    { messages: conversation.messages.slice(0, 2), tools: conversation.tools, reply: "It is 3.", reward: null },
  ]);
  store.close();
});

describe("spans", () => {
  const chat = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.input.messages": [{ role: "user", parts: [{ type: "text", content: "hi" }] }],
    "gen_ai.output.messages": [
      {
        role: "assistant",
        parts: [
          { type: "reasoning", content: "r" },
          { type: "text", content: "ho" },
        ],
      },
    ],
  };

  test("with attributes, or with the event that has the details", () => {
    const expected = {
      messages: [{ role: "user", content: "hi" }],
      reply: { role: "assistant", content: "ho", reasoning: "r" },
    };
    expect(readSpans(spans({ attributes: chat })).traces).toMatchObject([
      { ...expected, model: "m", params: { temperature: 0.5 }, latencyMs: 2, startedMs: 1 },
    ]);
    const { "gen_ai.operation.name": operation, ...details } = chat;
    const event: [string, object] = ["gen_ai.client.inference.operation.details", details];
    const events = [event] as [string, Record<string, unknown>][];
    expect(readSpans(spans({ attributes: { "gen_ai.operation.name": operation }, events })).traces).toMatchObject([
      expected,
    ]);
  });

  test("with a message in each event, as before version 1.37", () => {
    const events: [string, Record<string, unknown>][] = [
      ["gen_ai.system.message", { content: "s" }],
      ["gen_ai.user.message", { content: "u" }],
      ["gen_ai.assistant.message", { tool_calls: [{ id: "c", function: { name: "f", arguments: "{}" } }] }],
      ["gen_ai.tool.message", { id: "c", content: "3" }],
      ["gen_ai.choice", { message: { content: "done" } }],
    ];
    const [trace] = readSpans(spans({ attributes: { "gen_ai.operation.name": "chat" }, events })).traces;
    expect(trace).toMatchObject({
      messages: [
        { role: "system", content: "s" },
        { role: "user", content: "u" },
        { role: "assistant", toolCalls: [{ id: "c", name: "f" }] },
        { role: "tool", toolCallId: "c", content: "3" },
      ],
      reply: { content: "done" },
    });
  });

  test("scores join by trace, and the filter changes or leaves out what is stored", () => {
    const scored: [string, Record<string, unknown>][] = [
      ["gen_ai.evaluation.result", { "gen_ai.evaluation.name": "n", "gen_ai.evaluation.score.value": 0.5 }],
    ];
    const body = spans({ attributes: chat, events: scored }, { attributes: chat, traceId: "u" });
    const found = readSpans(body, (trace) => (trace.session === "u" ? null : { ...trace, messages: "[removed]" }));
    expect(found.sessions).toMatchObject([{ session: "t", reward: 0.5 }]);
    expect(found.traces).toMatchObject([{ session: "t", messages: "[removed]" }]);
    expect(found.skipped).toEqual({ "left out by the filter": 1 });
  });

  test("without content are counted, and failed calls are failed traces", () => {
    const { "gen_ai.output.messages": _, ...silent } = chat;
    const { traces, skipped } = readSpans(
      spans(
        { attributes: silent },
        { attributes: { other: 1 } },
        { attributes: chat, status: { code: 2, message: "boom" } },
      ),
    );
    expect(skipped).toEqual({
      "a model call without its messages: turn on recording of content": 1,
      "not a span of a model call": 1,
    });
    expect(traces).toMatchObject([{ status: "failed", error: "boom" }]);
  });

  test("of any form are read or refused, never with another error", () => {
    const nested = fc.letrec((tie) => ({
      value: fc.oneof(
        { depthSize: "small" },
        fc.constantFrom("gen_ai.operation.name", "chat", "parts", null, 1),
        fc.array(tie("value")),
        fc.dictionary(
          fc.constantFrom(
            "resourceSpans",
            "scopeSpans",
            "spans",
            "attributes",
            "events",
            "key",
            "value",
            "stringValue",
            "kvlistValue",
            "values",
            "toString",
            "__proto__",
          ),
          tie("value"),
        ),
      ),
    })).value;
    fc.assert(
      fc.property(nested, (made) => {
        const value: unknown = JSON.parse(JSON.stringify(made));
        for (const body of [value, { resourceSpans: [{ scopeSpans: [{ spans: [value] }] }] }]) {
          try {
            expect(readSpans(body).traces).toBeInstanceOf(Array);
          } catch (error) {
            expect((error as Error).message).toContain("resourceSpans");
          }
        }
      }),
    );
  });
});

describe("POST /v1/traces of the gateway", () => {
  let opened: Awaited<ReturnType<typeof testGateway>>;
  beforeAll(async () => {
    opened = await testGateway({ reply: () => "x", filterSpans: (trace) => ({ ...trace, role: "filtered" }) });
  });
  afterAll(() => opened.close());
  const post = (body: string, type = "application/json") =>
    fetch(`${opened.gateway.localOrigin}/v1/traces`, { method: "POST", headers: { "content-type": type }, body });

  test("stores spans; protobuf is refused with the setting that helps", async () => {
    const answer = await post(JSON.stringify(aiSdk));
    expect([answer.status, await answer.json()]).toEqual([200, { partialSuccess: {} }]);
    const stored = opened.store.sessions().flatMap((session) => opened.store.traces(session));
    expect(stored.map(({ api, role }) => [api, role])).toEqual([
      ["opentelemetry", "filtered"],
      ["opentelemetry", "filtered"],
    ]);
    const refused = await post("\n\u0001", "application/x-protobuf");
    expect([refused.status, await refused.text()]).toEqual([
      400,
      expect.stringContaining("OTEL_EXPORTER_OTLP_PROTOCOL=http/json"),
    ]);
    expect((await post('{"a": 1}')).status).toBe(400);
  });
});

test("hone traces import reads a file through a filter", () => {
  const folder = temporaryFolder("otlp");
  writeFileSync(join(folder, "spans.jsonl"), `${JSON.stringify(aiSdk)}\n\n${JSON.stringify(spans())}\n`);
  writeFileSync(
    join(folder, "filter.ts"),
    "export default (trace: { model: string }) => ({ ...trace, model: 'hidden' });",
  );
  const main = fileURLToPath(new URL("../../cli/main.ts", import.meta.url));
  const store = join(folder, "traces.db");
  const hone = (...args: string[]) =>
    spawnSync(process.execPath, ["--import", "tsx", main, "traces", ...args, "--store", store], {
      encoding: "utf8",
      cwd: fileURLToPath(new URL("../../..", import.meta.url)),
    });
  const imported = hone("import", join(folder, "spans.jsonl"), "--filter", join(folder, "filter.ts"));
  expect([imported.status, imported.stderr, imported.stdout]).toEqual([
    0,
    "",
    expect.stringContaining("2 calls of 1 traces read"),
  ]);
  const kept = openTraceStore({ path: store, create: false });
  expect(
    kept
      .sessions()
      .flatMap((session) => kept.traces(session))
      .map(({ model }) => model),
  ).toEqual(["hidden", "hidden"]);
  kept.close();
});
