import { fileURLToPath } from "node:url";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterEach, describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { rawRequest } from "../base/raw-request.fixture.ts";
import { loadChat } from "../chat/chat.ts";
import { readLines } from "../json-lines.fixture.ts";
import { toSequences } from "../trajectories/batch.ts";
import { openGateway } from "./gateway.ts";
import { type TestGatewayOptions, testGateway } from "./open-gateway.fixture.ts";
import { runCommandOnce } from "./recorded-agents.fixture.ts";

describe("gateway", () => {
  let opened: Awaited<ReturnType<typeof testGateway>>;
  afterEach(() => opened.close());

  const open = async (options: Partial<TestGatewayOptions> = {}) => {
    opened = await testGateway({ reply: () => "all is well", ...options });
    return opened;
  };
  const hello = [{ role: "user" as const, content: "hello" }];

  async function post(path: string, body: unknown, headers: Record<string, string> = {}) {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    const response = await fetch(path, {
      method: "POST",
      body: text,
      headers: { "content-type": "application/json", ...headers },
    });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  }
  const chat = (body: object) => post(`${opened.entry.baseURL}/chat/completions`, { messages: hello, ...body });

  describe("parameters", () => {
    test.each([
      [{ logit_bias: { 5: 1 } }, "logit_bias"],
      [{ frequency_penalty: 0.5 }, "frequency_penalty"],
      [{ colour: "red" }, "colour"],
      [{ temperature: "hot" }, "temperature"],
      [{ n: 0 }, "n"],
      [{ stop: Array(101).fill("x") }, "stop"],
      [{ top_logprobs: 3 }, "top_logprobs"],
      [{ messages: [] }, "messages"],
      [{ messages: [{ role: "narrator", content: "" }] }, "messages[0].role"],
      [
        { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "" } }] }] },
        "messages[0].content[0]",
      ],
      [{ tools: [{ type: "web_search" }] }, "tools[0]"],
      [{ tool_choice: "required", tools: [{ type: "function", function: { name: "f" } }] }, "tool_choice"],
      [
        { response_format: { type: "json_schema", json_schema: { schema: {}, strict: true } } },
        "response_format.json_schema.strict",
      ],
    ])("refused: %j", async (body, param) => {
      await open();
      expect(await chat(body)).toMatchObject({
        status: 400,
        body: { error: { type: "invalid_request_error", param } },
      });
      expect(opened.steps()).toEqual([]);
    });

    test("parameters that request nothing are accepted; ignored parameters are counted and logged once", async () => {
      await open();
      const body = { logit_bias: {}, frequency_penalty: 0, audio: null, user: "me", store: true, seed: 5 };
      expect([(await chat(body)).status, (await chat(body)).status]).toEqual([200, 200]);
      expect(opened.gateway.counts()).toMatchObject({
        "gateway/ignored_parameter/user": 2,
        "gateway/ignored_parameter/store": 2,
      });
      expect(opened.lines.filter((line) => line.includes("user"))).toHaveLength(1);
      expect(opened.store.sessions()[0]).toMatchObject({ calls: 2 });
    });

    test("n replies to one prompt have different seeds and are all recorded", async () => {
      await open();
      const { body } = await chat({ n: 3, seed: 9 });
      expect((body.choices as unknown[]).length).toBe(3);
      expect(body.usage).toMatchObject({ completion_tokens: 36 });
      const traces = opened.store.traces({ session: "train-1/task:0", attempt: 0 });
      expect(traces.map(({ params }) => params.seed)).toEqual([9, 10, 11]);
      expect(opened.steps()).toHaveLength(3);
    });

    test("stop strings end the reply and are not part of it, streamed or not", async () => {
      await open();
      const { body } = await chat({ stop: " is" });
      expect(body.choices).toMatchObject([{ message: { content: "all" }, finish_reason: "stop" }]);
      const client = new OpenAI({ baseURL: opened.entry.baseURL, apiKey: "any" });
      let text = "";
      const stream = await client.chat.completions.create({ model: "m", messages: hello, stop: [" is"], stream: true });
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
      expect(text).toBe("all");
      expect(opened.chat.decode(opened.steps()[0]!.tokens)).toBe("all is");
    });

    test("requested JSON is described to the model, checked and counted; strict JSON only if allowed", async () => {
      // A turn that calls a tool is not an answer.
      const call = { toolCalls: [{ name: "look", arguments: {} }] };
      const replies = ['{"a": 1}', '{"a": "one"}', "a is 1", call];
      await open({ unenforceable: "allow", reply: () => replies.shift()! });
      const schema = { type: "object", properties: { a: { type: "number" } }, required: ["a"] };
      const format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
      const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
      for (let asked = 0; asked < 4; asked++) {
        expect((await chat({ response_format: format, tools })).status).toBe(200);
      }
      expect(opened.gateway.counts()).toMatchObject({
        "gateway/json_valid": 1,
        "gateway/json_invalid": 2,
        "gateway/unenforced/response_format.json_schema.strict": 4,
      });
      expect(opened.steps()[0]!.messages[0]).toMatchObject({
        role: "system",
        content: expect.stringContaining('"number"'),
      });
    });
  });

  test("a schema whose pattern backtracks without end does not block the gateway", async () => {
    await open({ reply: () => JSON.stringify(`${"a".repeat(60)}b`) });
    const schema = { type: "string", pattern: "^(a+)+$" };
    const format = { type: "json_schema", json_schema: { name: "answer", schema } };
    expect((await chat({ response_format: format })).status).toBe(200);
    expect(opened.gateway.counts()).toMatchObject({ "gateway/json_invalid": 1 });
  });

  test("a request for more replies than fit into memory is refused", async () => {
    await open();
    const prompt = Array(1025).fill("a");
    const refused = await post(`${opened.entry.baseURL}/completions`, { prompt, stream: true });
    expect(refused).toMatchObject({ status: 400, body: { error: { param: "prompt" } } });
  });

  describe("errors", () => {
    test("in OpenAI's shape", async () => {
      await open({ reply: () => Promise.reject(new Error("out of memory")) });
      const client = new OpenAI({ baseURL: opened.entry.baseURL, apiKey: "any" });
      const failure = await client.chat.completions
        .create({ model: "m", messages: hello })
        .catch((error: unknown) => error);
      expect(failure).toBeInstanceOf(OpenAI.InternalServerError);
      expect(failure).toMatchObject({ status: 500, type: "server_error", code: "engine_failed" });
      // The client's own retries are switched off, so each call is made once.
      expect(opened.gateway.counts()).toMatchObject({ "gateway/calls_failed": 1 });
    });

    test("a prompt that the engine refuses is a 400, not a failed engine", async () => {
      await open({ reply: () => Promise.reject(new UserError("a prompt of 5019 tokens: the model's limit is 4096")) });
      const client = new OpenAI({ baseURL: opened.entry.baseURL, apiKey: "any" });
      await expect(client.chat.completions.create({ model: "m", messages: hello })).rejects.toMatchObject({
        ...{ status: 400, type: "invalid_request_error" },
        message: expect.stringContaining("the model's limit is 4096"),
      });
    });

    test("in Anthropic's shape", async () => {
      await open({ reply: () => Promise.reject(new Error("out of memory")) });
      const client = new Anthropic({ baseURL: opened.entry.anthropicBaseURL, apiKey: "any" });
      const ask = (more: object) => client.messages.create({ model: "m", max_tokens: 5, messages: hello, ...more });
      const failure = await ask({}).catch((error: unknown) => error);
      expect(failure).toBeInstanceOf(Anthropic.InternalServerError);
      expect(failure).toMatchObject({ status: 500, error: { type: "error", error: { type: "api_error" } } });
      expect(await ask({ max_tokens: 0 }).catch((error: unknown) => error)).toMatchObject({
        status: 400,
        error: { error: { type: "invalid_request_error" } },
      });
    });

    test("a prompt that is too long", async () => {
      await open({ limits: { maxPromptLength: 3, maxResponseLength: 10 } });
      expect(await chat({})).toMatchObject({ status: 400, body: { error: { code: "context_length_exceeded" } } });
      expect(opened.session.lastProblem).toMatchObject({ reason: "max_prompt_length_exceeded" });
    });

    test("a prompt of megabytes is refused before it is tokenized, in every API, and /health answers meanwhile", async () => {
      const folder = fileURLToPath(new URL("../chat/fixtures/qwen", import.meta.url));
      await open({ chat: loadChat(folder), limits: { maxPromptLength: 2048, maxResponseLength: 10 } });
      const content = "word ".repeat(1_600_000);
      const { baseURL, anthropicBaseURL } = opened.entry;
      const calls: [url: string, body: object][] = [
        [`${baseURL}/chat/completions`, { messages: [{ role: "user", content }] }],
        [`${baseURL}/completions`, { prompt: content }],
        [`${baseURL}/responses`, { input: content }],
        [`${anthropicBaseURL}/v1/messages`, { max_tokens: 5, messages: [{ role: "user", content }] }],
        [`${anthropicBaseURL}/v1/messages/count_tokens`, { messages: [{ role: "user", content: content.repeat(2) }] }],
      ];
      // Encoding one of them takes over a minute.
      const started = performance.now();
      const answers = await Promise.all([
        ...calls.map(([url, body]) => post(url, body)),
        fetch(`${opened.gateway.origin}/health`).then(({ status }) => ({ status })),
      ]);
      expect(performance.now() - started).toBeLessThan(25_000);
      expect(answers.map(({ status }) => status)).toEqual([400, 400, 400, 400, 400, 200]);
      expect(answers[0]).toMatchObject({
        body: { error: { code: "context_length_exceeded", message: expect.stringContaining("at least") } },
      });
      const huge = await post(`${baseURL}/completions`, { prompt: "x".repeat(33 * 2 ** 20) });
      expect(huge).toMatchObject({ status: 413, body: { error: { code: "request_too_large" } } });
    }, 60_000);

    test("bodies that are not JSON, unknown addresses, sessions that are unknown or have ended", async () => {
      await open();
      const { origin } = opened.gateway;
      const { baseURL } = opened.entry;
      expect((await post(`${baseURL}/chat/completions`, "{")).status).toBe(400);
      expect((await post(`${baseURL}/embeddings`, {})).status).toBe(404);
      expect((await fetch(`${baseURL}/chat/completions`)).status).toBe(404);
      expect((await post(`${origin}/s/other/a/0/v1/chat/completions`, { messages: hello })).status).toBe(404);
      expect((await post(`${origin}/s/%zz/a/0/v1/chat/completions`, { messages: hello })).status).toBe(404);
      opened.entry.close();
      expect(await chat({})).toMatchObject({ status: 410, body: { error: { code: "session_ended" } } });
    });
  });

  test("a client that disconnects ends the sampling, and nothing is recorded", async () => {
    let asked = () => {};
    const called = new Promise<void>((resolve) => {
      asked = resolve;
    });
    let stopped = () => {};
    const sampling = new Promise<void>((resolve) => {
      stopped = resolve;
    });
    await open({
      sampler: {
        async *sample([request]) {
          request!.signal!.addEventListener("abort", stopped);
          asked();
          await sampling;
          yield {
            request: 0,
            tokens: new Int32Array(0),
            logprobs: new Float32Array(0),
            stopReason: "aborted",
            policyVersion: 0,
          };
        },
      },
    });
    const abort = new AbortController();
    const call = fetch(`${opened.entry.baseURL}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ messages: hello }),
      signal: abort.signal,
    });
    await called;
    abort.abort();
    await expect(call).rejects.toThrow();
    await sampling;
    await new Promise((resolve) => setImmediate(resolve));
    expect(opened.gateway.counts()).toMatchObject({ "gateway/calls_cancelled": 1, "gateway/calls_failed": 0 });
    expect(opened.steps()).toEqual([]);
    expect(opened.store.sessions()).toMatchObject([{ calls: 1, unanswered: 1 }]);
  });

  describe("keys", () => {
    test("an address that others can reach refuses the default admin token", async () => {
      await open();
      await expect(openGateway({ chat: opened.chat, model: "m", host: "0.0.0.0" })).rejects.toThrow(UserError);
      await expect(openGateway({ chat: opened.chat, model: "m", host: "0.0.0.0", adminToken: "" })).rejects.toThrow(
        UserError,
      );
    });

    test("an address that others can reach requires the session's own key or the admin token", async () => {
      await open({ host: "0.0.0.0", adminToken: "a secret" });
      const base = opened.entry.baseURL.replace("0.0.0.0", "127.0.0.1");
      const ask = async (headers: Record<string, string>) =>
        (await post(`${base}/chat/completions`, { messages: hello }, headers)).status;
      const other = opened.gateway.open({ name: "other", attempt: 0, session: opened.session }).apiKey;
      expect(await ask({})).toBe(401);
      expect(await ask({ authorization: `Bearer ${other}` })).toBe(401);
      expect(await ask({ authorization: `Bearer ${opened.entry.apiKey}` })).toBe(200);
      expect(await ask({ "x-api-key": opened.entry.apiKey })).toBe(200);
      expect(await ask({ authorization: "Bearer a secret" })).toBe(200);
    });

    test("administration needs the admin token, on loopback too", async () => {
      await open({ adminToken: "a secret" });
      await chat({});
      const admin = async (path: string, token: string, method = "GET") => {
        const response = await fetch(`${opened.gateway.origin}${path}`, {
          method,
          headers: { authorization: `Bearer ${token}` },
        });
        return { status: response.status, body: (await response.json()) as Record<string, unknown> };
      };
      expect((await admin("/admin/sessions", "my-shared-secret")).status).toBe(401);
      expect(await admin("/admin/sessions", "a secret")).toMatchObject({
        status: 200,
        body: { live: [{ session: "train-1/task:0" }], stored: [{ calls: 1 }] },
      });
      const { body } = await admin("/admin/traces?session=train-1/task:0", "a secret");
      expect(body.traces).toMatchObject([{ status: "ok", promptTokens: Array.from(opened.steps()[0]!.promptTokens) }]);
      expect((await admin("/admin/flush", "a secret", "POST")).body).toMatchObject({ waiting: 0, lost: 0 });
      expect((await admin("/admin/none", "a secret")).status).toBe(404);
      expect((await fetch(`${opened.gateway.origin}/health`)).status).toBe(200);
    });
  });

  test("an agent elsewhere posts its result once, before or after it is waited for", async () => {
    await open();
    const waiting = opened.entry.result(opened.abort.signal);
    const url = opened.entry.resultURL;
    expect((await post(`${opened.entry.anthropicBaseURL}/result`, { reward: 9 })).status).toBe(404);
    expect((await post(`${url}x`, { reward: 9 })).status).toBe(404);
    expect((await post(url, { reward: 1 })).status).toBe(200);
    expect(await waiting).toEqual({ reward: 1 });
    expect(await opened.entry.result(opened.abort.signal)).toEqual({ reward: 1 });
    expect((await post(url, { reward: 0 })).status).toBe(400);
  });

  test.each([
    ["/v1/v1/messages", "gateway.anthropicBaseURL (/s/train-1%2Ftask%3A0/a/0), not gateway.baseURL", "anthropic"],
    ["/v1/v1/chat/completions", "must be gateway.anthropicBaseURL", "openai"],
    ["/messages", "must be gateway.baseURL (/s/train-1%2Ftask%3A0/a/0/v1)", "anthropic"],
    ["/chat/completions", "must be gateway.baseURL (/s/train-1%2Ftask%3A0/a/0/v1)", "openai"],
    ["/v1/embeddings", "there are /v1/chat/completions, /v1/completions", "openai"],
  ])("a client with a wrong base URL learns the right one: %s", async (endpoint, answer, shape) => {
    await open();
    const { status, body } = await post(`${opened.entry.anthropicBaseURL}${endpoint}`, { messages: hello });
    expect(status).toBe(404);
    expect(JSON.stringify(body)).toContain(answer);
    expect(body.type).toBe(shape === "anthropic" ? "error" : undefined);
  });
});

describe("recorded agents", () => {
  interface Recorded {
    method: string;
    path: string;
    upgrade?: string;
    status: number;
    body?: { tools?: unknown[] };
  }

  async function replay(agent: string) {
    const file = new URL(`recorded-agents/${agent}.jsonl`, import.meta.url);
    const [{ version }, ...requests] = readLines(file) as [{ version: string }, ...Recorded[]];
    const opened = await testGateway({ reply: runCommandOnce, enforceSampling: true });
    try {
      opened.entry.separateSideCalls();
      const statuses: number[] = [];
      for (const { method, path, upgrade, body } of requests) {
        const answer = await rawRequest(`${opened.entry.anthropicBaseURL}${path}`, {
          method,
          headers: { "content-type": "application/json", ...(upgrade ? { upgrade, connection: "upgrade" } : {}) },
          ...(body ? { body: JSON.stringify(body) } : {}),
        });
        statuses.push(answer.status);
      }
      expect(statuses).toEqual(requests.map(({ status }) => status));
      const trajectories = opened.session.trajectories();
      const [own] = trajectories.filter(({ name }) => name === "agent");
      const sequences = toSequences({
        ...own!,
        steps: own!.steps.map((step) => ({ ...step, policyVersion: 0 })),
      });
      return {
        version,
        calls: Object.fromEntries(trajectories.map(({ name, steps }) => [name, steps.length])),
        sequences: sequences.sequences.length,
        said: own!.steps.flatMap(({ reply }) => reply?.toolCalls.map(({ name }) => name) ?? []),
        ignored: Object.keys(opened.gateway.counts()).filter((name) => name.includes("ignored_parameter/tools")),
      };
    } finally {
      await opened.close();
    }
  }

  test.each([
    ["mini-swe-agent", { version: "2.4.6", calls: { agent: 2 }, said: ["bash"], ignored: [] }],
    ["pi", { version: "0.85.1", calls: { agent: 2 }, said: ["bash"], ignored: [] }],
    ["opencode", { version: "1.18.33", calls: { side: 1, agent: 2 }, said: ["bash"], ignored: [] }],
    ["claude-code", { version: "2.1.330", calls: { agent: 2 }, said: ["Bash"], ignored: [] }],
    [
      "codex",
      {
        version: "0.169.0",
        calls: { agent: 2 },
        said: ["exec_command"],
        ignored: ["gateway/ignored_parameter/tools.namespace", "gateway/ignored_parameter/tools.web_search"],
      },
    ],
  ])(
    "%s: every request is answered, its own calls are one sequence, others have another role",
    async (agent, expected) => {
      expect(await replay(agent)).toEqual({ ...expected, sequences: 1 });
    },
  );
});
