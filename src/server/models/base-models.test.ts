import { mkdtempSync } from "node:fs";
import { basename, join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { type TestClient, testClient, tinyEngine } from "../client.fixture.ts";
import { namesOf, readServedModel } from "./base-models.ts";

const root = temporaryFolder("base-models");

let client: TestClient;
let session: string;
beforeAll(async () => {
  const second = tabularEngine({ alphabet: "abcdefgh" });
  client = await testClient({
    engines: [
      { names: ["first"], engine: tinyEngine() },
      { names: ["second", "alias"], engine: second },
    ],
  });
  session = String((await client.post("create_session", { tags: [] })).session_id);
});
afterAll(() => client.dispose());

const create = async (base_model: string, number: number) => {
  const lora = { rank: 2, seed: 1, train_unembed: true, train_mlp: true, train_attn: true };
  const body = { session_id: session, model_seq_id: number, base_model, lora_config: lora };
  return String((await client.finish("create_model", body)).model_id);
};

test("several base models are served side by side, each with its own models and checkpoints", async () => {
  const capabilities = await (await client.request("GET", "/api/v1/get_server_capabilities")).json();
  const listed = (capabilities as { supported_models: { model_name: string }[] }).supported_models;
  expect(listed.map(({ model_name }) => model_name)).toEqual(["first", "second"]);
  const [first, second, alias] = [await create("first", 0), await create("second", 1), await create("alias", 2)];
  const { logprobs } = await client.cross(second, 1, true);
  // The second one knows nothing: every token is as likely as any other.
  for (const logprob of logprobs) expect(logprob).toBeCloseTo(logprobs[0]!, 6);
  expect((await client.cross(alias, 1, true)).logprobs).toEqual(logprobs);
  expect((await client.cross(first, 1, true)).logprobs).not.toEqual(logprobs);

  const { path } = await client.finish("save_weights", { model_id: first, seq_id: 2, path: "one" });
  const load = { model_id: second, seq_id: 2, path, optimizer: true };
  expect((await client.failure("load_weights", load)).error).toMatch(
    /belongs to the base model first, but this model is based on second/,
  );
  const sampler = { session_id: session, sampling_session_seq_id: 5, base_model: "alias", model_path: path };
  await expect(client.post("create_sampling_session", sampler)).rejects.toThrow(
    /400: .*belongs to the base model first, not to alias/,
  );
  await expect(client.post("create_sampling_session", { ...sampler, base_model: "frist" })).rejects.toThrow(
    /400: .*does not serve the base model .*frist.* Served: first, second/,
  );
});

test("a model has the given name, or the names of its source and the last part of its folder", () => {
  const folder = mkdtempSync(join(root, "model-"));
  expect(namesOf(readServedModel(`Org/name=${folder}`))).toEqual(["Org/name", folder, basename(folder)]);
  expect(namesOf(readServedModel("smollm2-135m-instruct"))).toEqual(["smollm2-135m-instruct"]);
});
