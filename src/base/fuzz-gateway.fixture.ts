/** The gateway over a scripted model, as a target of random requests. */
import { expect } from "vitest";
import { testGateway } from "../gateway/open-gateway.fixture.ts";
import { type FuzzRequest, mutate, type Template } from "./fuzz-request.fixture.ts";
import { type Answer, secrets, type Target } from "./fuzz-target.fixture.ts";
import { rawRequest } from "./raw-request.fixture.ts";

/** @param keyed behind a public address */
export async function openGatewayTarget(keyed: boolean): Promise<Target> {
  const lines: string[] = [];
  const opened = await testGateway({
    reply: () => "well, 4",
    adminToken: secrets.admin,
    ...(keyed ? { publicUrl: "https://gateway.example.com" } : {}),
    log: (line) => lines.push(line),
    callTimeoutSeconds: 20,
  });
  const { gateway, entry } = opened;
  const other = gateway.open({ name: "other", attempt: 0, session: opened.session }).apiKey;
  const key = keyed ? { authorization: `Bearer ${entry.apiKey}` } : {};
  const base = "/s/train-1%2Ftask%3A0/a/0";
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "2 + 2?" }] },
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "c", content: "4" },
  ];
  const tools = [{ type: "function", function: { name: "f", description: "d", parameters: { type: "object" } } }];
  const sampling = { model: "m", temperature: 1, top_p: 0.9, top_k: 5, stop: ["x"], seed: 3, max_tokens: 8 };
  const format = { type: "json_schema", json_schema: { name: "n", schema: { type: "object", properties: {} } } };
  const post = (path: string, body: unknown): Template => ({ method: "POST", path: base + path, headers: key, body });
  const get = (path: string, headers: Record<string, string> = key): Template => ({ method: "GET", path, headers });
  const chat = post("/v1/chat/completions", { ...sampling, messages: messages.slice(0, 2), metadata: { a: 1 } });
  const send = async (request: FuzzRequest): Promise<Answer> => {
    const { status, headers, text } = await rawRequest(gateway.localOrigin, {
      ...{ method: request.method, path: request.path, headers: request.headers },
      ...(request.body === undefined ? {} : { body: request.body }),
    });
    return { status, type: String(headers["content-type"] ?? ""), text };
  };
  return {
    templates: [
      chat,
      post("/v1/chat/completions", {
        messages,
        tools,
        tool_choice: "auto",
        stream: true,
        stream_options: { include_usage: true },
      }),
      post("/v1/chat/completions", {
        messages: messages.slice(1, 2),
        response_format: format,
        logprobs: true,
        top_logprobs: 2,
        n: 2,
      }),
      post("/r/judge%232/v1/chat/completions", {
        messages: messages.slice(1, 2),
        chat_template_kwargs: { enable_thinking: true },
      }),
      post("/v1/completions", {
        ...sampling,
        prompt: ["a", "b"],
        logprobs: 1,
        stream: false,
        add_special_tokens: true,
      }),
      post("/v1/completions", { prompt: [[1, 2], [3]], return_token_ids: true, stream: true }),
      post("/v1/responses", {
        input: [{ role: "user", content: "a" }],
        instructions: "b",
        max_output_tokens: 5,
        stream: true,
      }),
      post("/v1/responses", {
        input: "a",
        tools: [{ type: "function", name: "f", parameters: {} }],
        text: { format: { type: "text" } },
      }),
      post("/v1/messages", {
        model: "m",
        max_tokens: 5,
        system: "s",
        messages: [{ role: "user", content: "a" }],
        stream: true,
      }),
      post("/v1/messages", {
        max_tokens: 5,
        messages: [{ role: "user", content: [{ type: "text", text: "a" }] }],
        thinking: { type: "enabled", budget_tokens: 5 },
      }),
      post("/v1/messages/count_tokens", {
        messages: [{ role: "user", content: "a" }],
        tools: [{ name: "f", input_schema: {} }],
      }),
      post("/result", { reward: 1 }),
      { ...post("", { reward: 1 }), path: "/results/unknown" },
      get("/health", {}),
      get(`${base}/v1/models`),
      get("/v1/models/policy"),
      get("/admin/sessions?since=1&limit=2"),
      get("/admin/traces?session=train-1/task:0&attempt=0", { authorization: "Bearer wrong" }),
      get("/admin/key?session=other", { authorization: "Bearer my-shared-secret" }),
      { method: "POST", path: "/admin/flush", headers: { authorization: `Bearer ${secrets.admin}` } },
      get("/admin/sessions?limit=2", { authorization: `Bearer ${secrets.admin}` }),
      get("/admin/metrics", { authorization: `Bearer ${secrets.admin}` }),
    ],
    send,
    checkError({ text }) {
      const { type, error } = JSON.parse(text) as { type?: string; error: { message: string; type: string } };
      expect([undefined, "error"]).toContain(type);
      expect(error).toMatchObject({ message: expect.any(String), type: expect.any(String) });
    },
    secrets: [secrets.admin, other, secrets.environment],
    async alive() {
      const { status } = await send(mutate(chat, () => 0));
      expect(status).toBe(200);
      expect(opened.gateway.counts()["gateway/calls_failed"]).toBe(0);
      expect(lines.join("")).not.toContain(secrets.admin);
    },
    url: gateway.localOrigin,
    close: () => opened.close(),
  };
}
