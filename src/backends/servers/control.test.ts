/**
 * Every control request that Hone sends must be one that the servers take, by the routes and message types of vLLM 0.32.0 and
 * SGLang 0.5.23 (recorded by scripts/proofs/upstream-contract/control.py). A key that they do not know fails too, although
 * they may ignore it.
 */
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { Ajv } from "ajv";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import { type Control, sglangControl, vllmControl } from "./control.ts";

interface Route {
  method: string;
  query: Record<string, object>;
  body: object | null;
}
const file = new URL("./fixtures/control-routes.json", import.meta.url);
const recorded = JSON.parse(readFileSync(file, "utf8")) as Record<string, { routes: Record<string, Route> }>;
const ajv = new Ajv({ strict: false, coerceTypes: false, allErrors: true });

const answer = JSON.stringify({ success: true, weight_version: "7", data: [{ id: "base" }] });
/** Routes of the OpenAI API, or, in vLLM, without a described body. */
const others = ["/v1/models", "/collective_rpc"];

interface Asked {
  method: string;
  url: URL;
  body: string;
}
let server: Server;
let url: string;
let asked: Asked[] = [];
beforeAll(async () => {
  server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    asked.push({ method: request.method!, url: new URL(request.url!, "http://server"), body });
    response.end(answer);
  });
  url = await listen(server);
});
afterAll(() => void server.close());

const calls: Record<string, (control: Control) => Promise<unknown>> = {
  loadAdapter: (control) => control.loadAdapter("hone-1", "/run/hone-1"),
  unloadAdapter: (control) => control.unloadAdapter("hone-1"),
  loadWeights: (control) => control.loadWeights("/run/hone-1", "7"),
  weightVersion: (control) => control.weightVersion(),
  sleep: (control) => control.sleep(),
  wake: (control) => control.wake(),
};

const group = {
  id: "A".repeat(171).concat("="),
  size: 3,
  weights: { names: ["a.weight", "b"], dtypes: ["bfloat16", "float32"], shapes: [[2, 3], [4]] },
  join: async () => {},
  send: async () => void asked.push({ method: "POST", url: new URL("send://group"), body: "" }),
};

test("vllm takes weights by NCCL in this order, and stays paused if they do not arrive", async () => {
  const control = vllmControl({ url, headers: {} });
  const { routes } = recorded.vllm!;
  asked = [];
  await control.joinGroup!(group);
  await control.receiveWeights!(group, "7");
  const [, , , ...rest] = asked.map(({ url }) => url.pathname || url.href);
  expect(asked.slice(0, 3).map(({ url }) => url.pathname)).toEqual([
    "/init_weight_transfer_engine",
    "/pause",
    "/start_weight_update",
  ]);
  // At the same time.
  expect(rest.slice(0, 2).sort()).toEqual(["/update_weights", "send://group"]);
  expect(rest.slice(2)).toEqual(["/finish_weight_update", "/reset_prefix_cache", "/resume"]);
  for (const { url, body } of asked.filter(({ url }) => url.protocol === "http:")) {
    const route = routes[url.pathname];
    expect([url.pathname, route?.method]).toEqual([url.pathname, "POST"]);
    if (route!.body) expectValid(route!.body, JSON.parse(body));
    else expect(body).toBe("{}");
  }

  asked = [];
  const failing = { ...group, send: () => Promise.reject(new Error("nobody took part")) };
  await expect(control.receiveWeights!(failing, "8")).rejects.toThrow("nobody took part");
  expect(asked.map(({ url }) => url.pathname)).not.toContain("/resume");
});

describe.each([
  ["vllm", vllmControl],
  ["sglang", sglangControl],
] as const)("%s takes", (kind, open) => {
  const { routes } = recorded[kind]!;

  test.each(Object.keys(calls))("%s", async (name) => {
    asked = [];
    await calls[name]!(open({ url, headers: {} }));
    expect(asked.length).toBeGreaterThan(0);
    for (const { method, url, body } of asked.filter(({ url }) => !others.includes(url.pathname))) {
      const route = routes[url.pathname];
      expect([url.pathname, route?.method]).toEqual([url.pathname, method]);
      const query = Object.fromEntries([...url.searchParams].map(([key, value]) => [key, readValue(value)]));
      expectValid({ properties: route!.query }, query);
      if (route!.body) expectValid(route!.body, JSON.parse(body));
      else expect(["", "{}"]).toContain(body);
    }
  });
});

const readValue = (text: string): unknown => (/^(true|false|\d+)$/.test(text) ? JSON.parse(text) : text);

function expectValid(schema: object, value: unknown): void {
  const validate = ajv.compile({ type: "object", ...schema, additionalProperties: false });
  validate(value);
  expect(validate.errors ?? []).toEqual([]);
}
