// Slow: servers are restarted.
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { adam, type TestClient, testClient } from "./client.fixture.ts";

let client: TestClient;
let folder: string;
beforeEach(async () => {
  folder = testFolder("serve");
  client = await testClient({ folder });
});
afterEach(() => client.dispose());

/** Ends the server as a kill does, and starts another on the same folder. */
async function restart(more = {}) {
  await client.close();
  client = await testClient({ folder, ...more });
}

/** One step of training: ids `seq` and `seq + 1`. */
async function step(id: string, seq: number) {
  const { loss } = await client.cross(id, seq);
  await client.finish("optim_step", { model_id: id, seq_id: seq + 1, ...adam() });
  return loss;
}

const save = (id: string, seq_id: number, path: string, more = {}) =>
  client.finish("save_weights", { model_id: id, seq_id, path, ...more });
const load = (session: string, model_seq_id: number, path: unknown, optimizer: boolean) =>
  client.finish("load_weights", { session_id: session, model_seq_id, path, optimizer });

test("a saved model continues exactly, with its optimizer and after a restart", async () => {
  const { session, id } = await client.model();
  await step(id, 1);
  await step(id, 3);
  const { path } = await save(id, 5, "two");
  expect(path).toBe(`tinker://${id}/weights/two`);
  const expected = [await step(id, 6), await step(id, 8), await step(id, 10)];
  await restart();
  const resumed = await load(session, 1, path, true);
  expect(resumed.model_id).toBe(`${session}:train:1`);
  const again = String(resumed.model_id);
  expect([await step(again, 1), await step(again, 3), await step(again, 5)]).toEqual(expected);
  // Without its moments the optimizer's first step differs.
  const fresh = String((await load(session, 2, path, false)).model_id);
  expect(await step(fresh, 1)).toBe(expected[0]);
  expect(await step(fresh, 3)).not.toBe(expected[1]);
});

test("a model that has not changed since it was saved or created survives a restart", async () => {
  const [trained, fresh] = [await client.model({ seed: 3 }), await client.model({ seed: 4 })];
  await step(trained.id, 1);
  await save(trained.id, 3, "one");
  const [one, two] = [await client.cross(trained.id, 4, true), await client.cross(fresh.id, 1, true)];
  await restart();
  expect(await client.cross(trained.id, 5, true)).toEqual(one);
  expect(await client.cross(fresh.id, 2, true)).toEqual(two);
});

test("unsaved changes are lost with the server, and the model's requests say so", async () => {
  const { session, id } = await client.model();
  await step(id, 1);
  const { path } = await save(id, 3, "one");
  const expected = await step(id, 4);
  await restart();
  const failure = await client.failure("optim_step", { model_id: id, seq_id: 6, ...adam() });
  expect(failure.error).toMatch(new RegExp(`create_training_client_from_state_with_optimizer\\("${path}"\\)`));
  expect(await client.post("get_info", { model_id: id })).toMatchObject({ model_id: id });
  const again = String((await load(session, 1, path, true)).model_id);
  expect(await step(again, 1)).toBe(expected);
});

test("a gradient without a step is lost with the server, and the weights are kept", async () => {
  const { id } = await client.model();
  await step(id, 1);
  await save(id, 3, "one");
  const { logprobs } = await client.cross(id, 4);
  await restart();
  const failure = await client.failure("optim_step", { model_id: id, seq_id: 5, ...adam() });
  expect(failure.error).toMatch(/Run the forward_backward calls of this step again/);
  expect((await client.cross(id, 6)).logprobs).toEqual(logprobs);
  await client.finish("optim_step", { model_id: id, seq_id: 7, ...adam() });
});

test("after a restart no request is waited for that was answered before, or whose client knows that it was lost", async () => {
  const [saved, lost] = [await client.model({ seed: 3 }), await client.model({ seed: 4 })];
  await step(saved.id, 1);
  await save(saved.id, 3, "one");
  const answered = await client.cross(saved.id, 4, true);
  await step(lost.id, 1);
  await restart({ gapSeconds: 3600 });
  expect(await client.cross(saved.id, 5, true)).toEqual(answered);
  const failure = await client.failure("optim_step", { model_id: lost.id, seq_id: 3, ...adam() });
  expect(failure.error).toMatch(/the weights of .* are gone/);
  // 6 and 7 were in progress, and 8 comes before the client has asked for 7.
  const ask = (seq: number) => client.collect(`${saved.id}:${seq}@earlier`);
  expect((await ask(6)).status).toBe(410);
  const next = client.cross(saved.id, 8, true);
  expect((await ask(7)).status).toBe(410);
  expect(await next).toEqual(answered);
});

test("a restart removes what a killed server was writing and keeps what it had written", async () => {
  const { id } = await client.model();
  const { path } = await save(id, 1, "one");
  await client.close();
  const half = ["sessions", "checkpoints"].map((kind) => join(folder, kind, ".0123.json.@elsewhere@42@0.partial"));
  for (const file of half) writeFileSync(file, '{"run": "hal');
  client = await testClient({ folder });
  expect(half.filter((file) => existsSync(file))).toEqual([]);
  expect(await client.post("weights_info", { tinker_path: path as string })).toMatchObject({ lora_rank: 2 });
});

test("a future from before a restart is gone, not pending", async () => {
  const { id } = await client.model();
  const { request_id } = await client.post("optim_step", { model_id: id, seq_id: 1, ...adam() });
  await client.collect(request_id);
  await restart();
  const response = await client.collect(request_id);
  expect([response.status, await response.text()]).toEqual([410, expect.stringMatching(/restarted/)]);
});

test("a name can be used once, unless the request allows overwriting", async () => {
  const { id } = await client.model();
  await save(id, 1, "x");
  const again = { model_id: id, seq_id: 2, path: "x" };
  expect(await client.failure("save_weights", again)).toMatchObject({
    category: "user",
    error: expect.stringMatching(/already exists/),
  });
  await step(id, 3);
  await save(id, 5, "x", { overwrite: true });
  const after = await client.cross(id, 6, true);
  const { session } = await client.model();
  const loaded = String((await load(session, 1, `tinker://${id}/weights/x`, true)).model_id);
  expect(await client.cross(loaded, 1, true)).toEqual(after);
  for (const [seq, path] of [
    [7, "a/b"],
    [8, ".."],
    [9, ""],
  ] as const) {
    expect((await client.failure("save_weights", { model_id: id, seq_id: seq, path })).category).toBe("user");
  }
  const short = await client.failure("save_weights", { model_id: id, seq_id: 10, path: "y", ttl_seconds: 60 });
  expect(short.error).toMatch(/between 3600/);
});

test("a missing checkpoint, or one of another kind, is the user's mistake", async () => {
  const { session, id } = await client.model();
  await save(id, 1, "here");
  const missing = { session_id: session, model_seq_id: 5, path: `tinker://${id}/weights/there`, optimizer: true };
  expect(await client.failure("load_weights", missing)).toMatchObject({
    category: "user",
    error: expect.stringMatching(/That run has .*here/),
  });
  await client.finish("save_weights_for_sampler", { model_id: id, seq_id: 2, path: "s" });
  const wrongKind = { ...missing, model_seq_id: 6, path: `tinker://${id}/sampler_weights/s` };
  expect((await client.failure("load_weights", wrongKind)).error).toMatch(/must be in weights/);
  const noPath = { ...missing, model_seq_id: 7, path: "weights/there" };
  expect((await client.failure("load_weights", noPath)).error).toMatch(/not the path of a checkpoint/);
  expect((await load(session, 8, `tinker://${id}/weights/here`, true)).model_id).toBe(`${session}:train:8`);
});

test("a live model can be restored from a checkpoint", async () => {
  const { id } = await client.model();
  await step(id, 1);
  const { path } = await save(id, 3, "one");
  const expected = await step(id, 4);
  await client.cross(id, 6);
  await client.finish("load_weights", { model_id: id, seq_id: 7, path, optimizer: true });
  expect(await step(id, 8)).toBe(expected);
});

test("checkpoints are listed, described, published, copied, deleted and expire", async () => {
  let now = new Date("2030-01-01T00:00:00Z");
  await client.close();
  client = await testClient({ folder, now: () => now });
  const { session, id } = await client.model();
  await save(id, 1, "a", { ttl_seconds: 3600, user_metadata: { why: "test" } });
  await client.finish("save_weights_for_sampler", { model_id: id, seq_id: 2, path: "b" });
  const get = async (path: string) =>
    (await (await client.request("GET", `/api/v1/${path}`)).json()) as Record<string, unknown>;
  const list = async () => (await get(`training_runs/${id}/checkpoints`)).checkpoints as Record<string, unknown>[];
  expect(await list()).toMatchObject([
    { checkpoint_id: "weights/a", checkpoint_type: "training", public: false, user_metadata: { why: "test" } },
    { checkpoint_id: "sampler_weights/b", checkpoint_type: "sampler", expires_at: null },
  ]);
  expect((await list())[0]!.size_bytes).toBeGreaterThan(0);
  expect(await get("checkpoints?limit=1")).toMatchObject({ checkpoints: [{}], cursor: { total_count: 2, limit: 1 } });
  expect(await get(`training_runs/${id}`)).toMatchObject({
    base_model: "tabular",
    last_checkpoint: { checkpoint_id: "weights/a" },
    last_sampler_checkpoint: { checkpoint_id: "sampler_weights/b" },
  });
  expect(await client.post("weights_info", { tinker_path: `tinker://${id}/weights/a` })).toMatchObject({
    lora_rank: 2,
    train_mlp: true,
  });
  const path = `/api/v1/training_runs/${id}/checkpoints`;
  expect((await client.request("POST", `${path}/weights/a/publish`)).status).toBe(204);
  expect((await list())[0]).toMatchObject({ public: true });
  expect((await client.request("DELETE", `${path}/weights/a/publish`)).status).toBe(204);
  expect((await list())[0]).toMatchObject({ public: false });

  const source_path = `tinker://${id}/weights/a`;
  const copied = await client.request(
    "POST",
    "/api/v1/copy_weights",
    { source_path, destination_project_id: "p" },
    { "x-idempotency-key": "k" },
  );
  const again = await client.request(
    "POST",
    "/api/v1/copy_weights",
    { source_path, destination_project_id: "p" },
    { "x-idempotency-key": "k" },
  );
  const { tinker_path } = (await copied.json()) as { tinker_path: string };
  expect(await again.json()).toEqual({ tinker_path });

  expect((await client.request("PUT", `${path}/sampler_weights/b/ttl`, { ttl_seconds: 7200 })).status).toBe(204);
  now = new Date("2030-01-01T01:30:00Z");
  expect((await list()).map(({ checkpoint_id }) => checkpoint_id)).toEqual(["sampler_weights/b"]);
  expect((await client.request("PUT", `${path}/sampler_weights/b/ttl`, { ttl_seconds: null })).status).toBe(204);
  await client.sweep();
  // The copy holds the weights that the expired checkpoint had.
  const model = await load(session, 3, tinker_path, true);
  expect(model.model_id).toBe(`${session}:train:3`);
  expect((await client.request("DELETE", `${path}/sampler_weights/b`)).status).toBe(204);
  expect(await list()).toEqual([]);
  expect((await client.request("DELETE", `${path}/sampler_weights/b`)).status).toBe(404);
  const untrainable = tinker_path.split("/")[2]!;
  expect((await client.failure("optim_step", { model_id: untrainable, seq_id: 1, ...adam() })).error).toMatch(
    /cannot be trained/,
  );
});

test("idle models beyond the limit move to disk and continue as if they had stayed in memory", async () => {
  let now = new Date();
  const own = await testClient({ now: () => now, maxIdleModels: 1 });
  const step = async (id: string, seq: number) => {
    const { loss } = await own.cross(id, seq);
    await own.finish("optim_step", { model_id: id, seq_id: seq + 1, ...adam() });
    return loss;
  };
  const { session, id: first } = await own.model();
  const others = [await own.model({ number: 1, session }), await own.model({ number: 2, session })];
  const ids = [first, ...others.map(({ id }) => id)];
  const losses: number[][] = [];
  for (const id of ids) {
    losses.push([await step(id, 1), await step(id, 3)]);
    now = new Date(now.getTime() + 1000);
  }
  // A model in the middle of a step stays.
  await own.cross(ids[1]!, 5);
  const metric = async (name: string) =>
    Number(new RegExp(`^${name} (\\d+)$`, "m").exec(await (await own.request("GET", "/metrics")).text())?.[1] ?? 0);
  await own.sweep();
  expect([await metric("hone_models"), await metric("hone_evicted_models_total")]).toEqual([3, 0]);
  now = new Date(now.getTime() + 60_000);
  await own.sweep();
  expect([await metric("hone_models"), await metric("hone_evicted_models_total")]).toEqual([2, 1]);
  await own.finish("optim_step", { model_id: ids[1], seq_id: 6, ...adam() });
  const later = [await step(first, 5), await step(ids[2]!, 5), await step(ids[1]!, 7)];
  expect(new Set(losses.map((each) => each.join())).size).toBe(1);
  expect(later[0]).toBe(later[1]);
  expect(later[2]).toBeLessThan(later[1]!);
  expect(await metric("hone_models")).toBe(3);
  await own.dispose();
});
