import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Engine } from "../backends/engine.ts";
import { EngineDied } from "../backends/engine-died.ts";
import { adam, samplesOf, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";

/** The tabular engine, with policies that never answer again once it has died; after `stall` they answer by its death alone. */
function mortalEngine(): { engine: Engine; die(): void; stall(): void } {
  const engine = tinyEngine();
  const reason = new EngineDied("the worker ended by SIGKILL");
  let die = (): void => {};
  const died = new Promise<Error>((resolve) => {
    die = () => resolve(reason);
  });
  const death = died.then((error) => Promise.reject(error));
  death.catch(() => {});
  let stalled = false;
  const mortal = <T>(work: Promise<T>): Promise<T> => (stalled ? death : Promise.race([death, work]));
  return {
    die,
    stall() {
      stalled = true;
    },
    engine: {
      ...engine,
      died,
      async createPolicy(spec) {
        const policy = await mortal(engine.createPolicy(spec));
        return {
          ...policy,
          forward: (...args) => mortal(policy.forward(...args)),
          forwardBackward: (...args) => mortal(policy.forwardBackward(...args)),
          optimStep: (...args) => mortal(policy.optimStep(...args)),
          saveState: (...args) => mortal(policy.saveState(...args)),
          loadState: (...args) => mortal(policy.loadState(...args)),
          async *sample(requests, options) {
            await mortal(Promise.resolve());
            yield* policy.sample(requests, options);
          },
        };
      },
    },
  };
}

let client: TestClient;
let present: ReturnType<typeof mortalEngine>;
let opened: number;
let lines: string[];
beforeEach(async () => {
  opened = 0;
  lines = [];
  present = mortalEngine();
  const reopen = async () => {
    opened++;
    present = mortalEngine();
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
  test("a model is as it was saved, and goes on by itself", async () => {
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
    expect(lines.join("")).toMatch(/engine of tabular died; it is started again\. the worker ended by SIGKILL/);
    expect(await (await client.request("GET", "/metrics")).text()).toContain(
      'hone_engine_deaths_total{model="tabular"} 1\n',
    );
  });

  test("a gradient is lost, which the step says, and the weights are not", async () => {
    const { id } = await client.model();
    const before = await client.cross(id, 1);
    present.die();
    const failure = await client.failure("optim_step", { model_id: id, seq_id: 2, ...adam() });
    expect(failure.error).toMatch(/run the forward_backward calls of this step again/);
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

  test("a request that was under way fails as the server's fault, and says what is left", async () => {
    const { id } = await client.model();
    present.stall();
    const { request_id } = await client.post("optim_step", { model_id: id, seq_id: 1, ...adam() });
    present.die();
    expect(await (await client.collect(request_id)).json()).toMatchObject({
      category: "server",
      error: expect.stringMatching(/died during this request; the weights of .* are gone: .*create a new training/),
    });
  });

  test("a sample that was under way is gone, so that its client asks anew and gets it", async () => {
    const { session } = await client.model();
    const id = await sampler(session);
    const expected = await samplesOf(await client.result("asample", request(id, 0)));
    present.stall();
    const { request_id } = await client.post("asample", request(id, 1));
    present.die();
    expect((await client.collect(request_id)).status).toBe(410);
    expect(await samplesOf(await client.result("asample", request(id, 2)))).toEqual(expected);
  });

  test("again and again, it is not started again for ever, and its clients are told", async () => {
    const { session } = await client.model();
    const id = await sampler(session);
    for (let death = 1; death <= 3; death++) {
      present.die();
      await client.result("asample", request(id, death));
    }
    present.die();
    await new Promise(setImmediate);
    expect(opened).toBe(3);
    expect(await client.failure("asample", request(id, 9))).toEqual({
      category: "server",
      error: "the worker ended by SIGKILL",
    });
    expect(lines.join("")).toMatch(/not started again/);
  });
});
