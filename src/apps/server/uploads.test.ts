import { readdirSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import type { Engine, Learner } from "../../backends/engine.ts";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { type TestClient, testClient, tinyEngine } from "./client.fixture.ts";

let client: TestClient;
afterEach(() => client.dispose());

type Json = Record<string, unknown>;

/** An engine that takes every adapter, as the tabular one has no exports. */
function adopting() {
  const engine = tinyEngine();
  const loaded: string[] = [];
  const adoptingLearner = (learner: Learner): Learner => ({
    ...learner,
    async loadState(folder) {
      loaded.push(folder);
      return learner.publish();
    },
  });
  const adopted: Engine = {
    ...engine,
    createLearner: async (spec) => adoptingLearner(await engine.createLearner(spec)),
    async createPolicy(spec) {
      const { sampler, learner } = await engine.createPolicy(spec);
      return { sampler, learner: adoptingLearner(learner) };
    },
  };
  return { engine: adopted, loaded };
}

const start = async (more: Json = {}) =>
  (await client.post("external_weights_upload_start", {
    ...{ base_model: "tabular", lora_config: { rank: 4 } },
    ...more,
  })) as { upload_id: string; urls: Record<string, string>; expires: string };
const put = (url: string, text: string) => client.app.request(url, { method: "PUT", body: text });
const finish = async (upload_id: string) => {
  const response = await client.request("POST", "/api/v1/external_weights_upload_finish", { upload_id });
  return [response.status, (await response.json()) as Json] as const;
};
const config = (r: number) => JSON.stringify({ r, lora_alpha: 8 });

test("an uploaded adapter becomes a checkpoint that is listed and loaded", async () => {
  const { engine, loaded } = adopting();
  client = await testClient({ engines: [{ names: ["tabular"], engine }] });
  const { upload_id, urls } = await start({ destination_project_id: "p" });
  expect(Object.keys(urls)).toEqual(["adapter_config.json", "adapter_model.safetensors"]);
  for (const [file, url] of Object.entries(urls)) {
    expect((await put(url, file.endsWith("json") ? config(4) : "weights")).status).toBe(200);
  }
  const [, { tinker_path: path }] = await finish(upload_id);
  expect(path).toMatch(/^tinker:\/\/.+:train:0\/external_weights\/uploaded$/);
  expect(await finish(upload_id)).toEqual([200, { tinker_path: path }]);
  const info = await client.post("weights_info", { tinker_path: path });
  expect(info).toMatchObject({ base_model: "tabular", lora_rank: 4 });
  const session = String((await client.post("create_session", {})).session_id);
  const load = { session_id: session, model_seq_id: 0, path, optimizer: false };
  expect(await client.finish("load_weights", load)).toMatchObject({ model_id: `${session}:train:0` });
  expect(loaded).toHaveLength(2);
  expect((await client.failure("load_weights", { ...load, model_seq_id: 1, optimizer: true })).error).toMatch(
    /without an optimizer/,
  );
  const found = await client.post("checkpoints/search", { project_ids: ["p"], checkpoint_type: "external" });
  expect(found).toMatchObject({ checkpoints: [{ tinker_path: path, base_model: "tabular" }], next_cursor: null });
});

test("an upload that is incomplete or does not fit is refused, and may be corrected", async () => {
  const folder = testFolder("serve");
  client = await testClient({ folder, engines: [{ names: ["tabular"], engine: adopting().engine }] });
  const { upload_id, urls } = await start();
  expect(await finish(upload_id)).toMatchObject([
    400,
    { detail: expect.stringMatching(/is missing adapter_config.json and/) },
  ]);
  await put(urls["adapter_model.safetensors"]!, "weights");
  for (const [text, words] of [
    ["{", /not valid JSON/],
    ["{}", /lora_alpha/],
    [config(8), /rank 8, but lora_config has rank 4/],
  ] as const) {
    await put(urls["adapter_config.json"]!, text);
    expect(await finish(upload_id)).toMatchObject([400, { detail: expect.stringMatching(words) }]);
  }
  await put(urls["adapter_config.json"]!, config(4));
  expect((await finish(upload_id))[0]).toBe(200);
  expect((await put(urls["adapter_config.json"]!, config(4))).status).toBe(400);
  expect((await finish("none"))[0]).toBe(404);
  const other = urls["adapter_config.json"]!.replace("adapter_config.json", "..%2F..%2Fevil");
  expect((await put(other, "")).status).toBe(403);
  expect((await client.app.request(urls["adapter_config.json"]!)).status).toBe(404);
  expect(
    (await client.request("POST", "/api/v1/external_weights_upload_start", { base_model: "no", lora_config: {} }))
      .status,
  ).toBe(400);
});

test("an upload that is not finished is dropped after two hours", async () => {
  const folder = testFolder("serve");
  let now = new Date();
  client = await testClient({ folder, now: () => now });
  const { upload_id, urls } = await start();
  await put(urls["adapter_config.json"]!, config(4));
  const data = () => readdirSync(join(folder, "data"));
  await client.sweep();
  expect(data()).toHaveLength(1);
  now = new Date(now.getTime() + 2 * 3_600_000);
  await client.sweep();
  expect([data(), (await finish(upload_id))[0], (await put(urls["adapter_config.json"]!, "")).status]).toEqual([
    [],
    404,
    403,
  ]);
});

test("checkpoints are searched newest first, a page at a time", async () => {
  let now = new Date("2026-01-01T00:00:00Z");
  client = await testClient({ now: () => now });
  const { id } = await client.model();
  const save = (seq_id: number, path: string, more: Json = {}) =>
    client.finish("save_weights", { model_id: id, seq_id, path, ...more });
  await save(1, "a", { user_metadata: { step: "1" } });
  await save(2, "b");
  now = new Date("2026-01-01T01:00:00Z");
  await client.finish("save_weights_for_sampler", { model_id: id, seq_id: 3, path: "c" });
  const names = async (query: Json) => {
    const { checkpoints, next_cursor } = await client.post("checkpoints/search", query);
    return { names: (checkpoints as Json[]).map(({ tinker_path }) => String(tinker_path).at(-1)), next_cursor };
  };
  expect((await names({ owner: { type: "own" } })).names).toEqual(["c", "b", "a"]);
  const first = await names({ limit: 2 });
  expect(first.names).toEqual(["c", "b"]);
  expect(await names({ limit: 2, cursor: first.next_cursor })).toEqual({ names: ["a"], next_cursor: null });
  for (const [query, expected] of [
    [{ checkpoint_type: "training" }, ["b", "a"]],
    [{ user_metadata: { step: "1" } }, ["a"]],
    [{ base_models: ["tabular"], limit: 1 }, ["c"]],
    [{ base_models: [] }, []],
    [{ project_ids: ["other"] }, []],
  ] as const) {
    expect((await names(query)).names).toEqual(expected);
  }
  expect((await client.request("POST", "/api/v1/checkpoints/search", { stpe: 1 })).status).toBe(400);
  const garbage = { cursor: { last_created_at: "soon", last_checkpoint_uuid: "x" } };
  expect((await client.request("POST", "/api/v1/checkpoints/search", garbage)).status).toBe(400);
});
