/** What clients send must not act on the terminal, fill the disk, or come back as a failure of the server. */
// Slow: texts of megabytes.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { RunError } from "../../base/errors.ts";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { type TestClient, testClient } from "./client.fixture.ts";
import { createLog, describeFailure } from "./context.ts";

let client: TestClient | undefined;
afterEach(() => client?.dispose());

const json = (response: Response) => response.json() as Promise<{ detail: string }>;

test("a client's name with terminal escapes and newlines is logged as one harmless line", async () => {
  const lines: string[] = [];
  client = await testClient({ write: (line) => lines.push(line) });
  await client.post("create_session", { tags: [], display_name: "x\x1b[2J\n00:00:00 fake line\u202e\x9b1m" });
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatch(/ session begins \("x\\x1b\[2J\\n00:00:00 fake line\\u202e\\x9b1m"\)\n$/);
});

test("each line of a stack is a line of the log, and long text is cut", () => {
  const lines: string[] = [];
  const log = createLog(
    (line) => lines.push(line),
    () => new Date(0),
  );
  log.warn("", "failed", "Error: x\n    at y");
  log.info("", "z".repeat(100_000));
  expect(lines.slice(0, 3).map((line) => line.trimEnd())).toEqual([
    "00:00:00 failed",
    "00:00:00 Error: x",
    "00:00:00     at y",
  ]);
  expect(lines[3]!.length).toBeLessThan(1100);
});

test("a display name of megabytes is neither logged nor stored in full", async () => {
  const lines: string[] = [];
  const folder = testFolder("serve");
  client = await testClient({ folder, write: (line) => lines.push(line) });
  const { session, id } = await client.model();
  const huge = "y".repeat(2_000_000);
  const written = lines.length;
  const bodies: [method: string, path: string, body: object][] = [
    ["POST", "create_session", { tags: [], display_name: huge }],
    ["POST", "create_session", { tags: [huge] }],
    ["POST", "create_session", { tags: new Array(1000).fill("tag") }],
    ["POST", "create_session", { tags: [], project_id: huge }],
    ["POST", "create_session", { tags: [], user_metadata: { key: huge } }],
    ["POST", "create_session", { tags: [], user_metadata: { [huge]: 1 } }],
    ["POST", `sessions/${session}/finish`, { reason: { type: huge } }],
    ["POST", `sessions/${session}/finish`, { reason: { type: "error" }, detail: huge }],
    ["PUT", `sessions/${session}/project`, { project_id: huge }],
    ["POST", "create_model", { session_id: session, model_seq_id: 1, base_model: "tabular", user_metadata: { huge } }],
    ["POST", "create_model", { session_id: session, model_seq_id: 1, base_model: huge }],
    ["POST", "weights_info", { tinker_path: huge }],
    ["POST", "session_heartbeat", { session_id: huge }],
    ["POST", "retrieve_future", { request_id: huge }],
  ];
  for (const [method, path, body] of bodies) {
    const response = await client.request(method, `/api/v1/${path}`, body);
    expect([path, Math.floor(response.status / 100)]).toEqual([path, 4]);
    expect((await response.text()).length).toBeLessThan(10_000);
  }
  await client.failure("save_weights", { model_id: id, seq_id: 1, path: huge });
  expect(lines.slice(written).join("").length).toBeLessThan(3000);
  for (const file of readdirSync(join(folder, "sessions"))) {
    expect(readFileSync(join(folder, "sessions", file)).length).toBeLessThan(5000);
  }
});

test("an invalid cursor is the client's error", async () => {
  client = await testClient();
  await client.model();
  for (const last_created_at of ["garbage", "", "+999999-01-01T00:00:00Z"]) {
    const response = await client.request("POST", "/api/v1/sessions/search", {
      cursor: { last_created_at, last_session_id: "x" },
    });
    expect([response.status, (await json(response)).detail]).toEqual([400, expect.stringContaining("cursor")]);
  }
});

test("a temperature that is too close to 0 is refused, and clients do not see a traceback", async () => {
  client = await testClient();
  const session_id = (await client.post("create_session", { tags: [] })).session_id;
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "tabular" };
  const { sampling_session_id } = await client.post("create_sampling_session", sampler);
  const sample = async (temperature: number, seq_id: number) => {
    const prompt = { chunks: [{ type: "encoded_text", tokens: [5] }] };
    const body = { sampling_session_id, seq_id, prompt, sampling_params: { temperature, max_tokens: 1 } };
    return client!.result("asample", body);
  };
  expect(await (await sample(1e-320, 1)).json()).toMatchObject({
    category: "user",
    error: expect.stringMatching(/at least 0\.01/),
  });
  expect((await sample(0.01, 2)).headers.get("content-type")).toContain("protobuf");
  const died = new RunError("the worker died\nlast it wrote:\n    Traceback (most recent call last)");
  const failure = { error: "the worker died", message: "the worker died", category: "server", code: "run_failed" };
  expect(describeFailure(died)).toEqual(failure);
});

test("only the owner can read the server's state", async () => {
  const folder = join(testFolder("serve"), "state");
  client = await testClient({ folder });
  await client.model();
  const permissions = (path: string) => statSync(path).mode & 0o777;
  expect(permissions(folder)).toBe(0o700);
  for (const file of readdirSync(join(folder, "sessions"))) {
    expect(permissions(join(folder, "sessions", file))).toBe(0o600);
  }
});
