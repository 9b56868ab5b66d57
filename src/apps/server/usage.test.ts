import { afterEach, expect, test } from "vitest";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { adam, type TestClient, testClient } from "./client.fixture.ts";

let client: TestClient;
afterEach(() => client.dispose());

type Json = Record<string, unknown>;
const get = async (path: string): Promise<Json> =>
  (await (await client.request("GET", `/api/v1/${path}`)).json()) as Json;

test("usage is counted in tokens, checkpoints and byte-hours by hour, session and model, and outlives the server", async () => {
  let now = new Date("2026-01-31T22:59:00Z");
  const folder = testFolder("serve");
  const open = async () => testClient({ folder, now: () => now });
  client = await open();
  const { session, id } = await client.model();
  await client.cross(id, 1);
  await client.cross(id, 2, true);
  now = new Date("2026-01-31T23:01:00Z");
  await client.finish("optim_step", { model_id: id, seq_id: 3, ...adam() });
  await client.finish("save_weights", { model_id: id, seq_id: 4, path: "one" });
  const made = { session_id: session, sampling_session_seq_id: 0, base_model: "other-name" };
  const { sampling_session_id } = await client.post("create_sampling_session", made);
  await client.result("asample", {
    ...{
      sampling_session_id,
      seq_id: 0,
      num_samples: 2,
      prompt: { chunks: [{ type: "encoded_text", tokens: [5, 6] }] },
    },
    sampling_params: { max_tokens: 3, stop: [] },
  });
  await client.sweep();
  now = new Date("2026-02-01T01:01:00Z");
  await client.sweep();
  await client.dispose();
  client = await open();
  const { data, sessions } = await get(
    "billing/usage/events?starting_on=2026-01-31T22:00:00Z&ending_before=2026-02-01T02:00:00Z",
  );
  const rows = (data as Json[]).map(({ bucket_start, base_model, session_id, event_info }) => {
    const { type, ...amounts } = event_info as Json;
    return [String(bucket_start).slice(11, 13), type, base_model, session_id === session, amounts];
  });
  const { sizeBytes } = [...client.service.context.store.checkpoints.values()][0]!;
  expect(rows.sort()).toEqual(
    [
      ["22", "training", "tabular", true, { token_count: 8 }],
      ["23", "checkpoint", "tabular", true, { count: 1 }],
      ["23", "sampling_prefill", "tabular", true, { cached: false, token_count: 2 }],
      ["23", "sampling_sample", "tabular", true, { token_count: 6 }],
      [
        "23",
        "storage",
        "tabular",
        false,
        { free: true, gigabyte_hours: expect.closeTo((sizeBytes * 2) / 60 / 1e9, 12) },
      ],
      ["01", "storage", "tabular", false, { free: true, gigabyte_hours: expect.closeTo((sizeBytes * 2) / 1e9, 12) }],
    ].sort(),
  );
  expect(sessions).toEqual({ [session]: { user_metadata: null } });
  for (const [query, reason] of [
    ["starting_on=2026-01-31T22:30:00Z&ending_before=2026-02-01T02:00:00Z", /full hour/],
    ["starting_on=2026-01-31T22:00:00Z", /ending_before/],
    ["starting_on=2026-01-01T00:00:00Z&ending_before=2026-02-01T00:00:00Z", /at most 14 days/],
  ] as const) {
    expect((await get(`billing/usage/events?${query}`)).detail).toMatch(reason);
  }
});

test("current storage is reported by project, each folder of weights once", async () => {
  client = await testClient();
  const { session, id } = await client.model();
  const { path } = await client.finish("save_weights", { model_id: id, seq_id: 1, path: "one" });
  await client.post("copy_weights", { source_path: path, destination_project_id: "p" });
  await client.post("copy_weights", { source_path: path, destination_project_id: "p" });
  const { sizeBytes } = [...client.service.context.store.checkpoints.values()][0]!;
  const size = { size_bytes: sizeBytes, size_gigabytes: sizeBytes / 1e9 };
  expect((await get("billing/usage/checkpoints/current")).data).toEqual([
    { project_id: null, checkpoint_count: 1, ...size },
    { project_id: "p", checkpoint_count: 2, ...size },
  ]);
  expect((await get("billing/usage/checkpoints/current?project_id=p")).data).toHaveLength(1);
  expect(session).toBeDefined();
});

test("calls of the SDK that are not supported are refused with a sentence", async () => {
  client = await testClient();
  const { session } = await client.model();
  for (const [method, path, words] of [
    ["GET", "audit?event_type=all", /keeps no audit log/],
    ["GET", `sessions/${session}/trace_export`, /exports no session traces/],
    ["POST", "auth/token", /exchanges no keys/],
    ["GET", "auth/apikey/me", /has no accounts/],
    ["DELETE", "auth/apikey/me", /one API key/],
    ["POST", "create_custom_loss", /runs no custom losses/],
  ] as const) {
    const response = await client.request(method, `/api/v1/${path}`, method === "POST" ? {} : undefined);
    // 400, because the SDK retries 408, 409, 429 and every status from 500 for minutes.
    expect(response.status).toBe(400);
    expect(((await response.json()) as Json).detail).toMatch(words);
  }
});
