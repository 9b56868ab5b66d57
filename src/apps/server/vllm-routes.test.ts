/** vLLM's routes over the server's engine: the sampler of inference servers passes the checks of samplers on them. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { samplerChecks } from "../../../conformance/conformance.ts";
import { lora } from "../../../conformance/tools.ts";
import type { Capabilities, Sampler } from "../../backends/engine.ts";
import { serverSampler } from "../../backends/servers/sampler.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { temporaryFolder, testFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { adam, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";
import { features } from "./features.ts";
import { type RunningServer, startServer } from "./server.ts";

const engine = tabularEngine({
  alphabet: "abcdefghijklmnopqrstuvwxyz",
  logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
});
const sampling: Capabilities["sampling"] = [
  ...(["top_p", "top_k", "min_p", "stop_ids", "stop_strings", "seed"] as const),
  ...(["prompt_logprobs", "top_logprobs", "abort", "tokens_streamed"] as const),
];

describe("the sampler of inference servers on hone serve", () => {
  const stateFolder = temporaryFolder("serve");
  let server: RunningServer;
  let sampler: Sampler;
  beforeAll(async () => {
    server = await startServer({
      ...{ engines: [{ names: ["tiny"], engine }], host: "127.0.0.1", port: 0, apiKey: "tml-key" },
      stateFolder,
      features,
    });
    sampler = serverSampler({ url: server.url, model: "tiny", apiKey: "tml-key" });
  });
  afterAll(async () => {
    await sampler.close();
    await server.close();
  });

  for (const { name, needs, check } of samplerChecks) {
    test.skipIf(needs && !needs({ sampling }))(name, () =>
      check({ sampler, model: engine.model }, { tolerance: 1e-5 }),
    );
  }
});

describe("the routes", () => {
  let client: TestClient;
  beforeAll(async () => {
    const inner = tinyEngine();
    const model = { ...inner.model, maxLength: 2 ** 20 };
    client = await testClient({ engines: [{ names: ["tabular"], engine: { ...inner, model } }] });
  });
  afterAll(() => client.dispose());

  const generate = async (body: object) => {
    const response = await client.request("POST", "/inference/v1/generate", body);
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  };

  test("answer as vLLM does", async () => {
    const sampling_params = { max_tokens: 2, temperature: 0, logprobs: 1, prompt_logprobs: 0, ignore_eos: true };
    const { status, body } = await generate({ request_id: "mine", token_ids: [3, 4], sampling_params });
    const entry = { token_id: expect.any(Number), logprob: expect.any(Number) };
    expect([status, body]).toEqual([
      200,
      {
        request_id: "mine",
        created: expect.any(Number),
        model: expect.any(String),
        choices: [
          {
            index: 0,
            token_ids: [expect.any(Number), expect.any(Number)],
            logprobs: { content: [entry, entry].map((own) => ({ ...own, top_logprobs: [own] })) },
            finish_reason: "length",
            weight_versions: [{ version: "0", start: 0, end: 2 }],
          },
        ],
        prompt_logprobs: [null, { 4: { logprob: expect.any(Number) } }],
        usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 },
      },
    ]);
  });

  test.each([
    [{ token_ids: [] }, 400, /token_ids/],
    [{ token_ids: [3], logprobs: 1 }, 400, /Unrecognized key: "logprobs"/],
    [{ token_ids: [3], sampling_params: { repetition_penalty: 1.1 } }, 400, /repetition_penalty: only 1 is supported/],
    [{ token_ids: [3], sampling_params: { guided_json: {} } }, 400, /Unrecognized key: "guided_json"/],
    [
      { token_ids: [3], sampling_params: { temperature: 0.001 } },
      400,
      /temperature must be 0 \(greedy\) or a number of at least 0.01, but is 0.001/,
    ],
    [{ token_ids: [3], sampling_params: { max_tokens: 2 ** 20 } }, 400, /the model's limit is \d+ together/],
    [{ token_ids: [3], sampling_params: { stop: "" } }, 400, /would end every sequence/],
    [{ token_ids: [99_999] }, 400, /token_ids: token 99999 is not in the vocabulary/],
    [{ token_ids: [3], sampling_params: { stop_token_ids: [99_999] } }, 400, /stop_token_ids: token 99999 is not in/],
    [{ token_ids: [3], sampling_params: { logprobs: 1e9 } }, 400, /logprobs is 1000000000, but the vocabulary has 13/],
    [{ token_ids: [3], sampling_params: { seed: -2 } }, 400, /sampling_params.seed must be .* at least -1, but is -2/],
    [{ token_ids: [3], model: "other" }, 400, /does not serve the base model "other"/],
    [{ token_ids: [3], model: "tinker://a:train:0/weights/b" }, 400, /no checkpoint/],
  ])("refuse %j", async (request, status, message) => {
    const answered = await generate(request);
    expect(answered.status).toBe(status);
    expect(answered.body.detail).toMatch(message);
  });

  test("require the server's key, except to ask whether it works", async () => {
    const keyed = await testClient({ apiKey: "tml-secret" });
    const status = async (method: string, path: string) => (await keyed.request(method, path)).status;
    expect(await status("POST", "/inference/v1/generate")).toBe(401);
    expect(await status("GET", "/v1/models")).toBe(401);
    expect(await status("GET", "/health")).toBe(200);
    await keyed.dispose();
    expect((await client.request("GET", "/inference/v1/generate")).status).toBe(405);
  });

  test("report the models and the version of their weights", async () => {
    const { data } = (await (await client.request("GET", "/v1/models")).json()) as { data: Record<string, unknown>[] };
    expect(data[0]).toMatchObject({ id: "tabular", parent: null, max_model_len: 2 ** 20 });
    expect(await (await client.request("GET", "/weight_info")).json()).toEqual({ weight_version: "0" });
  });

  test("load and unload adapters, which requests name as their model", async () => {
    const folder = join(testFolder("serve"), "adapter");
    const { learner } = await tinyEngine().createPolicy({ adapter: lora() });
    await learner.saveState(folder);
    const header = Buffer.from(JSON.stringify({ "base_model.model.layers.0.self_attn.q_proj.lora_A.weight": {} }));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    const load = (body: object) => client.request("POST", "/v1/load_lora_adapter", body);
    expect((await load({ lora_name: "mine", lora_path: folder })).status).toBe(400);
    writeFileSync(join(folder, "adapter_config.json"), JSON.stringify({ r: 4, lora_alpha: 8 }));
    writeFileSync(join(folder, "adapter_model.safetensors"), Buffer.concat([length, header]));
    expect((await load({ lora_name: "mine", lora_path: folder })).status).toBe(200);
    expect(await (await load({ lora_name: "mine", lora_path: folder })).json()).toMatchObject({
      detail: "the name mine is already loaded",
    });
    const { data } = (await (await client.request("GET", "/v1/models")).json()) as { data: Record<string, unknown>[] };
    expect(data.map(({ id, parent }) => [id, parent])).toEqual([
      ["tabular", null],
      ["mine", "tabular"],
    ]);
    const unload = () => client.request("POST", "/v1/unload_lora_adapter", { lora_name: "mine" });
    expect([(await unload()).status, (await unload()).status]).toEqual([200, 404]);
    expect((await generate({ model: "mine", token_ids: [3] })).status).toBe(400);
  });

  test("abort a request by its id, which is answered with what it has", async () => {
    const sampling_params = { max_tokens: 2 ** 19, ignore_eos: true };
    const waiting = generate({ request_id: "long", token_ids: [3], sampling_params });
    await client.request("POST", "/inference/v1/abort_requests", { request_ids: ["generate-tokens-long"] });
    const { body } = await waiting;
    expect(body.choices).toMatchObject([{ finish_reason: "abort" }]);
  });

  test("sample from checkpoints, which are named by their address", async () => {
    const { id } = await client.model();
    await client.cross(id, 1);
    await client.finish("optim_step", { model_id: id, seq_id: 2, ...adam(1) });
    const { path } = await client.finish("save_weights_for_sampler", {
      model_id: id,
      seq_id: 3,
      path: "saved",
    });
    const sampling_params = { max_tokens: 3, temperature: 0, logprobs: 0, ignore_eos: true };
    const [base, trained] = await Promise.all(
      [{}, { model: path }].map((model) => generate({ ...model, token_ids: [5], sampling_params })),
    );
    expect(trained!.body).toMatchObject({ model: path });
    expect(trained!.body.choices).not.toEqual(base!.body.choices);
  });
});
