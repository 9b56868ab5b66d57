import { afterEach, expect, test } from "vitest";
import { rawRequest } from "../../base/raw-request.fixture.ts";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { type TestClient, testClient, tinyEngine } from "./client.fixture.ts";
import { openService, startServer } from "./server.ts";

let client: TestClient;
const open: TestClient[] = [];
const testServer = async (options?: Parameters<typeof testClient>[0]) => {
  client = await testClient(options);
  open.push(client);
};
afterEach(async () => {
  for (const one of open.splice(0)) await one.dispose();
});

test("if the server has a key, a request must have it in one of two headers", async () => {
  await testServer({ apiKey: "tml-secret" });
  const { app } = client;
  const status = async (headers: Record<string, string>, path = "/api/v1/get_server_capabilities") =>
    (await app.request(path, { headers })).status;
  expect(await status({})).toBe(401);
  expect(await status({ "x-api-key": "tml-secrets" })).toBe(401);
  expect(await status({ "x-api-key": "tml-secret" })).toBe(200);
  expect(await status({}, "/metrics")).toBe(401);
  expect(await status({ authorization: "Bearer tml-secret" }, "/metrics")).toBe(200);
  expect(await status({}, "/api/v1/healthz")).toBe(200);
});

test("requests of web pages are refused, and errors are JSON with a reason", async () => {
  await testServer();
  expect((await client.request("GET", "/api/v1/healthz", undefined, { origin: "http://evil.example" })).status).toBe(
    403,
  );
  const cases: [string, string, unknown, number, RegExp][] = [
    ["GET", "/api/v1/nothing", undefined, 404, /GET \/api\/v1\/nothing does not exist/],
    ["POST", "/api/v1/create_session", [], 400, /not a JSON object/],
    ["POST", "/api/v1/create_session", { tags: 3 }, 400, /tags/],
    ["POST", "/api/v1/session_heartbeat", { session_id: "x" }, 404, /no session/],
    ["POST", "/api/v1/optim_step", { model_id: "x:train:0", seq_id: 1 }, 404, /no model/],
    ["POST", "/api/v1/forward_backward", Uint8Array.of(7, 7, 7), 400, /ForwardBackwardRequest/],
    ["GET", "/api/v1/training_runs/none", undefined, 404, /no training run/],
    ["GET", "/api/v1/training_runs?limit=x", undefined, 400, /not a whole number/],
  ];
  for (const [method, path, body, status, text] of cases) {
    const response = await client.request(method, path, body);
    const { detail } = (await response.json()) as { detail: string };
    expect([path, response.status]).toEqual([path, status]);
    expect(detail).toMatch(text);
  }
});

test("a foreign Host is refused without a key, and a body must match its Content-Type", async () => {
  await testServer();
  const ask = async (path: string, headers: Record<string, string>, method = "GET") =>
    (await client.request(method, `/api/v1/${path}`, method === "POST" ? { tags: [] } : undefined, headers)).status;
  for (const path of ["healthz", "get_server_capabilities", "sessions", "checkpoints"]) {
    expect([await ask(path, { host: "evil.com" }), await ask(path, { host: "localhost:9999" })]).toEqual([403, 200]);
  }
  expect(await ask("create_session", { "content-type": "text/plain" }, "POST")).toBe(415);
  expect(await ask("create_session", { "content-type": "application/json; charset=utf-8" }, "POST")).toBe(200);
  expect(await ask("forward_backward", { "content-type": "text/plain" }, "POST")).toBe(415);
  await testServer({ apiKey: "tml-secret" });
  const keyed = await client.app.request("/api/v1/sessions", {
    headers: { host: "my.tunnel.dev", "x-api-key": "tml-secret" },
  });
  expect(keyed.status).toBe(200);
});

test("a finished session refuses requests and keeps its first reason", async () => {
  await testServer();
  const { session, id } = await client.model();
  const finish = (type: string) =>
    client.request("POST", `/api/v1/sessions/${session}/finish`, { reason: { type }, detail: null });
  expect([(await finish("success")).status, (await finish("errored")).status]).toEqual([204, 204]);
  expect((await client.request("POST", "/api/v1/session_heartbeat", { session_id: session })).status).toBe(410);
  expect((await client.request("POST", "/api/v1/optim_step", { model_id: id, seq_id: 1 })).status).toBe(410);
  const found = (await client.post("sessions/search", { session_id: session })).sessions;
  expect(found).toMatchObject([
    { session_id: session, status: { type: "client_finished", reason: { type: "success" } } },
  ]);
});

test("sessions are found by name, metadata, project and status, page by page", async () => {
  let time = 0;
  await testServer({ now: () => new Date(2030, 0, 1, 0, 0, time++) });
  const ids: string[] = [];
  for (const [display_name, colour] of [
    ["Nightly run one", "red"],
    ["nightly RUN two", "blue"],
    ["other", "red"],
  ]) {
    ids.push(
      String(
        (await client.post("create_session", { display_name, user_metadata: { colour }, project_id: "p" })).session_id,
      ),
    );
  }
  const search = async (query: object) =>
    (
      (await client.post("sessions/search", { owner: { type: "own" }, ...query })).sessions as { session_id: string }[]
    ).map(({ session_id }) => ids.indexOf(session_id));
  expect(await search({})).toEqual([2, 1, 0]);
  expect(await search({ display_name: "run nightly" })).toEqual([1, 0]);
  expect(await search({ user_metadata: { colour: "red" } })).toEqual([2, 0]);
  expect(await search({ project_ids: ["q"] })).toEqual([]);
  expect(await search({ statuses: [{ type: "active" }] })).toEqual([2, 1, 0]);
  const page = await client.post("sessions/search", { limit: 2 });
  expect(await search({ limit: 2, cursor: page.next_cursor })).toEqual([0]);
  const { sessions } = (await (await client.request("GET", "/api/v1/sessions?limit=1&offset=1")).json()) as {
    sessions: string[];
  };
  expect(sessions).toEqual([ids[1]]);
});

test("metrics are in Prometheus' text format", async () => {
  await testServer();
  const { id } = await client.model();
  await client.cross(id, 1);
  const text = await (await client.request("GET", "/metrics")).text();
  expect(text).toContain('hone_operations_total{kind="forward_backward",outcome="ok"} 1\n');
  expect(text).toContain("hone_trained_tokens_total 4\n");
  expect(text).toContain("# TYPE hone_models gauge\nhone_models 1\n");
  for (const line of text.trimEnd().split("\n"))
    expect(line).toMatch(/^(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"]*",?)+\})? [\d.e+-]+)$/);
});

test("silent sessions free their memory and log what is lost", async () => {
  let now = new Date("2030-01-01T00:00:00Z");
  const lines: string[] = [];
  await testServer({ now: () => now, sessionMinutes: 10, write: (line) => lines.push(line) });
  const { id } = await client.model();
  await client.cross(id, 1);
  const step = { adam_params: { learning_rate: 1, eps: 1e-8 } };
  await client.finish("optim_step", { model_id: id, seq_id: 2, ...step });
  now = new Date("2030-01-01T00:11:00Z");
  await client.sweep();
  expect(client.service.sessions.counts.models).toBe(0);
  expect(lines.join("")).toMatch(/no request came from its client for 11 minutes; unsaved changes are lost/);
  expect((await client.failure("optim_step", { model_id: id, seq_id: 3 })).error).toMatch(/adam_params/);
  expect((await client.failure("optim_step", { model_id: id, seq_id: 4, ...step })).error).toMatch(
    /never saved: create a new/,
  );
});

test("an address that others can reach requires a key; a port in use is an error", async () => {
  const folder = testFolder("serve");
  const options = { engines: [{ names: ["tabular"], engine: tinyEngine() }], stateFolder: folder };
  await expect(startServer({ ...options, host: "0.0.0.0", port: 0 })).rejects.toThrow(/requires an API key/);
  const server = await startServer({ ...options, host: "127.0.0.1", port: 0 });
  const unreadable = await rawRequest(server.url, { path: "/api/v1/healthz", headers: { host: "@" } });
  expect([unreadable.status, JSON.parse(unreadable.text)]).toMatchObject([400, { detail: expect.any(String) }]);
  expect(await (await fetch(`${server.url}/api/v1/healthz`)).json()).toEqual({ status: "ok" });
  const port = Number(new URL(server.url).port);
  await expect(startServer({ ...options, stateFolder: testFolder("serve"), host: "127.0.0.1", port })).rejects.toThrow(
    /cannot listen/,
  );
  await expect(openService(options)).rejects.toThrow(/in use/);
  await server.close();
});
