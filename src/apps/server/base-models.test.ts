import { mkdtempSync } from "node:fs";
import { basename, join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { EngineDied } from "../../backends/engine-parts.ts";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { namesOf, readServedModel } from "./base-models.ts";
import { adam, samplesOf, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";
import { killableEngine } from "./killable-engine.fixture.ts";

describe("base models", () => {
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
});

describe("engine supervisor", () => {
  let client: TestClient;
  let present: ReturnType<typeof killableEngine>;
  let opened: number;
  /** The errors of the next restarts. */
  let failures: Error[];
  let lines: string[];
  beforeEach(async () => {
    opened = 0;
    failures = [];
    lines = [];
    present = killableEngine(tinyEngine());
    const reopen = async () => {
      opened++;
      const failure = failures.shift();
      if (failure) throw failure;
      present = killableEngine(tinyEngine());
      return present.engine;
    };
    const engines = [{ names: ["tabular"], engine: present.engine, reopen }];
    client = await testClient({ engines, write: (line) => lines.push(line) });
  });
  afterEach(() => client.dispose());

  const step = async (id: string, seq: number): Promise<number> => {
    const { loss } = await client.cross(id, seq);
    await client.finish("optim_step", { model_id: id, seq_id: seq + 1, ...adam() });
    return loss;
  };

  const sampler = async (session: string) =>
    String(
      (
        await client.post("create_sampling_session", {
          session_id: session,
          sampling_session_seq_id: 9,
          base_model: "tabular",
        })
      ).sampling_session_id,
    );
  const request = (sampling_session_id: string, seq_id: number) => ({
    ...{ sampling_session_id, seq_id, num_samples: 1, prompt: { chunks: [{ type: "encoded_text", tokens: [5, 6] }] } },
    sampling_params: { max_tokens: 3, seed: 1, stop: [] },
  });

  describe("after the engine has died", () => {
    test("a model is restored as it was saved, without a request of its client", async () => {
      const { session, id } = await client.model();
      await step(id, 1);
      await client.finish("save_weights", { model_id: id, seq_id: 3, path: "one" });
      const twin = await client.finish("load_weights", {
        ...{ session_id: session, model_seq_id: 1, path: `tinker://${id}/weights/one`, optimizer: true },
      });
      const expected = [await step(String(twin.model_id), 1), await step(String(twin.model_id), 3)];
      present.die();
      expect([await step(id, 4), await step(id, 6)]).toEqual(expected);
      expect(opened).toBe(1);
      expect(lines.join("")).toMatch(/engine of tabular died; it is restarted\. the worker ended by SIGKILL/);
      expect(await (await client.request("GET", "/metrics")).text()).toContain(
        'hone_engine_deaths_total{model="tabular"} 1\n',
      );
    });

    test("a gradient is lost, which the step reports, and the weights are kept", async () => {
      const { id } = await client.model();
      const before = await client.cross(id, 1);
      present.die();
      const failure = await client.failure("optim_step", { model_id: id, seq_id: 2, ...adam() });
      expect(failure.error).toMatch(/Run the forward_backward calls of this step again/);
      expect(await client.cross(id, 3)).toEqual(before);
      await client.finish("optim_step", { model_id: id, seq_id: 4, ...adam() });
    });

    test("weights that were not saved are never replaced by fresh ones", async () => {
      const { id } = await client.model();
      await step(id, 1);
      await client.finish("save_weights", { model_id: id, seq_id: 3, path: "one" });
      await step(id, 4);
      present.die();
      for (const path of ["optim_step", "save_weights", "save_weights_for_sampler"]) {
        const failure = await client.failure(path, { model_id: id, path: "two", ...adam() });
        expect(failure).toMatchObject({ category: "user", error: expect.stringMatching(/weights\/one"\)$/) });
      }
    });

    test("a request in progress fails as a server error, and says what is left", async () => {
      const { id } = await client.model();
      present.stall();
      const { request_id } = await client.post("optim_step", { model_id: id, seq_id: 1, ...adam() });
      present.die();
      expect(await (await client.collect(request_id)).json()).toMatchObject({
        category: "server",
        error: expect.stringMatching(
          /died during this request, and the weights of .* are gone: .*create a new training/,
        ),
      });
    });

    test("a sample in progress is reported as gone, so its client sends the request again", async () => {
      const { session } = await client.model();
      const id = await sampler(session);
      const expected = await samplesOf(await client.result("asample", request(id, 0)));
      present.stall();
      const { request_id } = await client.post("asample", request(id, 1));
      present.die();
      expect((await client.collect(request_id)).status).toBe(410);
      expect(await samplesOf(await client.result("asample", request(id, 2)))).toEqual(expected);
    });

    test("a death while it restarts is one death of four, and requests wait for the next start", async () => {
      const { session } = await client.model();
      const id = await sampler(session);
      const expected = await samplesOf(await client.result("asample", request(id, 0)));
      const killed = () => new EngineDied("the worker ended by SIGKILL while it loaded the model");
      failures = [killed(), killed()];
      present.die();
      expect(await samplesOf(await client.result("asample", request(id, 1)))).toEqual(expected);
      expect(opened).toBe(3);
      expect(lines.join("").match(/died; it is restarted/g)).toHaveLength(3);
      // With the three deaths above, the next one is the last.
      present.die();
      const { message } = (await client.failure("asample", request(id, 2))) as unknown as { message: string };
      expect([opened, message]).toEqual([3, expect.stringMatching(/down and is not started again.*ended by SIGKILL/)]);
    });

    test("a restart that fails because of a mistake, such as a deleted model, is not tried again", async () => {
      failures = [new UserError("the folder ./model does not exist")];
      present.die();
      const { session } = await client.model().catch(() => ({ session: "" }));
      expect([session, opened]).toEqual(["", 1]);
      expect(lines.join("")).toMatch(/not restarted.*its restart failed: the folder \.\/model does not exist/);
    });

    const generate = async (stream = false) => {
      const sampling_params = { max_tokens: 2, temperature: 0 };
      const body = { token_ids: [5, 6], stream, sampling_params };
      const response = await client.request("POST", "/inference/v1/generate", body);
      return { status: response.status, text: await response.text() };
    };

    test("vLLM's routes answer 503 with the reason, also in a stream", async () => {
      present.stall();
      const asked = [generate(), generate(true)];
      await new Promise(setImmediate);
      present.die();
      const [plain, stream] = await Promise.all(asked);
      expect(plain).toEqual({
        status: 503,
        text: expect.stringMatching(/engine of tabular died and is restarted; send/),
      });
      expect(stream?.text).toMatch(/died and is restarted; send the request again","code":503/);
      expect((await generate()).status).toBe(200);
      failures = [1, 2, 3].map(() => new EngineDied("the worker ended by SIGKILL"));
      present.die();
      const down = /the engine of tabular is down and is not started again.*ended by SIGKILL/;
      expect(await generate()).toEqual({ status: 503, text: expect.stringMatching(down) });
    });

    test("too often, it is not restarted any more, and clients get the reason", async () => {
      const { session } = await client.model();
      const id = await sampler(session);
      for (let death = 1; death <= 3; death++) {
        present.die();
        await client.result("asample", request(id, death));
      }
      present.die();
      await new Promise(setImmediate);
      expect(opened).toBe(3);
      const down = {
        category: "server",
        code: "engine_down",
        message: expect.stringMatching(/^the engine of tabular is down and is not started again.*ended by SIGKILL/),
      };
      expect(await client.failure("asample", request(id, 9))).toMatchObject(down);
      expect(lines.join("")).toMatch(/not started again/);
      const made = { session_id: session, model_seq_id: 7, base_model: "tabular", lora_config: { rank: 2 } };
      expect(await client.failure("create_model", made)).toMatchObject(down);
      expect(
        await client.failure("optim_step", { model_id: `${session}:train:0`, seq_id: 1, ...adam() }),
      ).toMatchObject(down);
      const health = await client.request("GET", "/api/v1/healthz");
      expect([health.status, await health.json()]).toMatchObject([503, { status: "down" }]);
    });
  });
});
