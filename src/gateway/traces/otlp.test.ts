import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { runHone } from "../../apps/cli/hone.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { testGateway } from "../open-gateway.fixture.ts";
import { readSpans, storeSpans, type TraceFilter } from "./otlp.ts";
import { exportTraces } from "./read.ts";
import { openTraceStore } from "./store.ts";

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

test("an agent of the AI SDK 7 becomes one task and one row for supervised training", async () => {
  const store = openTraceStore({ path: ":memory:" });
  const { traces, skipped } = await readSpans(aiSdk);
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

  test("with attributes, or with the event that has the details", async () => {
    const expected = {
      messages: [{ role: "user", content: "hi" }],
      reply: { role: "assistant", content: "ho", reasoning: "r" },
    };
    expect((await readSpans(spans({ attributes: chat }))).traces).toMatchObject([
      { ...expected, model: "m", params: { temperature: 0.5 }, latencyMs: 2, startedMs: 1 },
    ]);
    const { "gen_ai.operation.name": operation, ...details } = chat;
    const event: [string, object] = ["gen_ai.client.inference.operation.details", details];
    const events = [event] as [string, Record<string, unknown>][];
    const detailed = spans({ attributes: { "gen_ai.operation.name": operation }, events });
    expect((await readSpans(detailed)).traces).toMatchObject([expected]);
  });

  test("with a message in each event, as before version 1.37", async () => {
    const events: [string, Record<string, unknown>][] = [
      ["gen_ai.system.message", { content: "s" }],
      ["gen_ai.user.message", { content: "u" }],
      ["gen_ai.assistant.message", { tool_calls: [{ id: "c", function: { name: "f", arguments: "{}" } }] }],
      ["gen_ai.tool.message", { id: "c", content: "3" }],
      ["gen_ai.choice", { message: { content: "done" } }],
    ];
    const { traces } = await readSpans(spans({ attributes: { "gen_ai.operation.name": "chat" }, events }));
    expect(traces[0]).toMatchObject({
      messages: [
        { role: "system", content: "s" },
        { role: "user", content: "u" },
        { role: "assistant", toolCalls: [{ id: "c", name: "f" }] },
        { role: "tool", toolCallId: "c", content: "3" },
      ],
      reply: { content: "done" },
    });
  });

  test("scores join by trace, and the filter changes or leaves out what is stored", async () => {
    const scored: [string, Record<string, unknown>][] = [
      ["gen_ai.evaluation.result", { "gen_ai.evaluation.name": "n", "gen_ai.evaluation.score.value": 0.5 }],
    ];
    const body = spans({ attributes: chat, events: scored }, { attributes: chat, traceId: "u" });
    const found = await readSpans(body, async (trace) =>
      trace.session === "u" ? null : { ...trace, messages: "[removed]" },
    );
    expect(found.sessions).toMatchObject([{ session: "t", reward: 0.5 }]);
    expect(found.traces).toMatchObject([{ session: "t", messages: "[removed]" }]);
    expect(found.skipped).toEqual({ "left out by the filter": 1 });
  });

  test("images are kept, and messages with other parts are counted", async () => {
    const asked = (part: object) => ({
      ...chat,
      "gen_ai.input.messages": [{ role: "user", parts: [{ type: "text", content: "What is it?" }, part] }],
    });
    const store = openTraceStore({ path: ":memory:" });
    const image = { type: "blob", modality: "image", mime_type: "image/png", content: "AAAA" };
    const body = spans(
      { attributes: asked(image) },
      { attributes: asked({ type: "blob", modality: "audio", mime_type: "audio/wav", content: "AAAA" }) },
      { attributes: asked({ type: "uri", modality: "image", uri: "file:///etc/passwd" }) },
      {
        attributes: { "gen_ai.operation.name": "chat" },
        events: [
          ["gen_ai.user.message", { content: 1 }],
          ["gen_ai.choice", {}],
        ],
      },
    );
    expect(storeSpans(store, await readSpans(body))).toEqual({
      "a message has a part of type blob, which is not text, a tool call or an image": 1,
      "a message has a part of type uri, which is not text, a tool call or an image": 1,
      "a message has a list as its content, which is not text, a tool call or an image": 1,
    });
    const content = [
      { type: "text", text: "What is it?" },
      { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } },
    ];
    expect([...exportTraces(store, "rows", {})]).toMatchObject([{ messages: [{ role: "user", content }] }]);
    expect(store.sessions()).toMatchObject([{ termination: "env_done", reward: null, calls: 1 }]);
    store.close();
  });

  test("of two conversations in one trace: the task's reply is that of its own conversation", async () => {
    const store = openTraceStore({ path: ":memory:" });
    const say = (text: string) => [{ role: "user", parts: [{ type: "text", content: text }] }];
    const of = (question: string, answer: string) => ({
      attributes: { ...chat, "gen_ai.input.messages": say(question), "gen_ai.output.messages": say(answer) },
    });
    storeSpans(store, await readSpans(spans(of("a?", "a"), of("b?", "b"))));
    expect([...exportTraces(store, "rows", {})]).toMatchObject([{ messages: [{ content: "a?" }], reply: "a" }]);
    store.close();
  });

  test("of a trace arrive in several exports: scores join, and what is stored stays", async () => {
    const store = openTraceStore({ path: ":memory:" });
    const scored = (spanId: string, value: number) =>
      spans({
        ...{ spanId, name: "gen_ai.evaluation.result" },
        attributes: { "gen_ai.evaluation.name": "n", "gen_ai.evaluation.score.value": value },
      });
    const called = spans({ attributes: chat });
    const skipped: unknown[] = [];
    for (const body of [scored("a", 1), called, scored("b", 0), called, scored("b", 0)])
      skipped.push(storeSpans(store, await readSpans(body)));
    expect(store.sessions()).toMatchObject([{ session: "t", reward: 0.5, calls: 1 }]);
    expect(skipped[3]).toEqual({ "already stored": 1 });
    store.close();
  });

  test.each<[string, TraceFilter, string]>([
    ["throws", () => JSON.parse("{"), "the span filter failed: "],
    ["returns something else", () => ({ redacted: true }) as never, "returned something else than the trace"],
  ])("are not stored if the filter %s", async (_name, filter, message) => {
    await expect(readSpans(spans({ attributes: chat }), filter)).rejects.toThrow(message);
  });

  test("without content are counted, and failed calls are failed traces", async () => {
    const { "gen_ai.output.messages": _, ...silent } = chat;
    const { traces, skipped } = await readSpans(
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

  test("of any form are read or refused, never with another error", async () => {
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
    await fc.assert(
      fc.asyncProperty(nested, async (made) => {
        const value: unknown = JSON.parse(JSON.stringify(made));
        for (const body of [value, { resourceSpans: [{ scopeSpans: [{ spans: [value] }] }] }]) {
          try {
            expect((await readSpans(body)).traces).toBeInstanceOf(Array);
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
  const post = (
    body: string | Uint8Array<ArrayBuffer>,
    type = "application/json",
    headers: Record<string, string> = {},
  ) =>
    fetch(`${opened.gateway.localOrigin}/v1/traces`, {
      method: "POST",
      headers: { "content-type": type, ...headers },
      body,
    });

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

  test("reads gzip, as the collector's exporter sends by default, within the limit of a request", async () => {
    const packed = (text: string, encoding = "gzip") =>
      post(new Uint8Array(gzipSync(text)), undefined, { "content-encoding": encoding });
    expect((await packed(JSON.stringify(aiSdk))).status).toBe(200);
    expect((await packed(`"${"x".repeat(40_000_000)}"`)).status).toBe(413);
    for (const answer of [await packed("{}", "br"), await post("{}", undefined, { "content-encoding": "gzip" })])
      expect([answer.status, await answer.text()]).toEqual([400, expect.stringContaining("gzip")]);
  });
});

test("hone traces import reads a file through a filter", () => {
  const folder = temporaryFolder("otlp");
  writeFileSync(join(folder, "spans.jsonl"), `${JSON.stringify(aiSdk)}\n\n${JSON.stringify(spans())}\n`);
  writeFileSync(
    join(folder, "filter.ts"),
    "export default (trace: { model: string }) => ({ ...trace, model: 'hidden' });",
  );
  const store = join(folder, "traces.db");
  const hone = (...args: string[]) => runHone(["traces", ...args, "--store", store]);
  const imported = hone("import", join(folder, "spans.jsonl"), "--filter", join(folder, "filter.ts"));
  expect([imported.status, imported.stderr, imported.stdout]).toEqual([
    0,
    "",
    expect.stringContaining("calls read: 2, of traces: 1"),
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
