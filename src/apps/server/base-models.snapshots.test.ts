/** A snapshot that a live model's policy serves gives exactly what a policy of its own would. */
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Sampler } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-parts.ts";
import { adam, samplesOf, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";

/** An engine that says which of its policies are open, and whose samples can be held back. */
function watchedEngine() {
  const engine = tinyEngine();
  const open = new Set<number>();
  let made = 0;
  let gate: Promise<void> | undefined;
  let die = (_: Error): void => {};
  const died = new Promise<Error>((resolve) => {
    die = resolve;
  });
  return {
    open,
    /** Samples wait until the returned function is called. */
    hold(): () => void {
      let release = (): void => {};
      gate = new Promise((resolve) => {
        release = resolve;
      });
      return release;
    },
    die: () => die(new EngineDied("the worker ended by SIGKILL")),
    engine: {
      ...engine,
      died,
      async createPolicy(spec: Parameters<typeof engine.createPolicy>[0]) {
        const policy = await engine.createPolicy(spec);
        const number = ++made;
        open.add(number);
        return {
          sampler: Object.assign(Object.create(policy.sampler) as Sampler, {
            async *sample(...args: Parameters<Sampler["sample"]>) {
              // Like a worker: samples use the weights of that moment, and a closed policy fails.
              await gate;
              if (!open.has(number)) throw new Error("a closed policy was sampled from");
              yield* policy.sampler.sample(...args);
            },
          }),
          learner: {
            ...policy.learner,
            async close() {
              open.delete(number);
              await policy.learner.close();
            },
          },
        };
      },
    },
  };
}

let present: ReturnType<typeof watchedEngine>;
let client: TestClient;
let model: { session: string; id: string };
let [modelSeq, sampleSeq, samplers] = [1, 0, 0];
beforeEach(async () => {
  present = watchedEngine();
  const reopen = async () => {
    present = watchedEngine();
    return present.engine;
  };
  client = await testClient({ engines: [{ names: ["tabular"], engine: present.engine, reopen }] });
  model = await client.model();
  [modelSeq, sampleSeq, samplers] = [1, 0, 0];
});
afterEach(() => client.dispose());

async function step(): Promise<void> {
  await client.cross(model.id, modelSeq++);
  await client.finish("optim_step", { model_id: model.id, seq_id: modelSeq++, ...adam() });
}
async function snapshot(more: Record<string, unknown> = {}): Promise<string> {
  const number = { sampling_session_seq_id: samplers++ };
  const body = { model_id: model.id, seq_id: modelSeq++, ...number, ...more };
  return String((await client.finish("save_weights_for_sampler", body)).sampling_session_id);
}
const request = (sampler: string, more: Record<string, unknown> = {}) => ({
  ...{ sampling_session_id: sampler, seq_id: sampleSeq++, num_samples: 4 },
  prompt: { chunks: [{ type: "encoded_text", tokens: [5, 6, 7] }] },
  sampling_params: { max_tokens: 12, seed: 1, stop: [] },
  ...more,
});
const sample = async (sampler: string, more = {}) => samplesOf(await client.result("asample", request(sampler, more)));
/** The likeliest tokens of the prompt and the score of a chosen one, by `mostLikely` and `forward`. */
const scores = (sampler: string) =>
  sample(sampler, { topk_prompt_logprobs: 3, target_prompt_logprobs: { data: [6, 7], dtype: "int64", shape: [2, 1] } });

test("a snapshot is frozen while the model is trained, while newer ones are made, and when the model is restored", async () => {
  await step();
  const first = await snapshot();
  const expected = await sample(first);
  // The model's own policy and no other.
  expect(present.open.size).toBe(1);
  await step();
  expect(await sample(first)).toEqual(expected);
  expect(present.open.size).toBe(1);
  const second = await snapshot();
  const later = await sample(second);
  expect(later).not.toEqual(expected);
  expect(await sample(first)).toEqual(expected);
  expect(present.open.size).toBe(2);
  const { path } = await client.finish("save_weights", { model_id: model.id, seq_id: modelSeq++, path: "x" });
  await step();
  expect(await sample(second)).toEqual(later);
  await client.finish("load_weights", { model_id: model.id, seq_id: modelSeq++, path, optimizer: true });
  await step();
  expect([await sample(first), await sample(second)]).toEqual([expected, later]);
});

test("scores come from the snapshot's weights, not from the weights in training", async () => {
  await step();
  const first = await snapshot();
  const before = await scores(first);
  await step();
  expect(await scores(first)).toEqual(before);
  const second = await snapshot();
  expect(await scores(second)).not.toEqual(before);
});

/** A snapshot, its samples, and a request for the same samples that waits until it is released. */
async function samplingUnderWay() {
  await step();
  const first = await snapshot();
  const expected = await sample(first);
  const release = present.hold();
  const { request_id } = await client.post("asample", request(first));
  await new Promise(setImmediate);
  return { first, expected, release, request_id };
}

test("samples in progress continue with the weights that they began with", async () => {
  const { first, expected, release, request_id } = await samplingUnderWay();
  await step();
  const second = await snapshot();
  release();
  expect(await samplesOf(await client.collect(request_id))).toEqual(expected);
  expect(await sample(second)).not.toEqual(expected);
  expect(await sample(first)).toEqual(expected);
});

test("a closed model is freed when the last request that samples from it has ended", async () => {
  const { expected, release, request_id } = await samplingUnderWay();
  const reason = { reason: { type: "success" }, detail: null };
  await client.request("POST", `/api/v1/sessions/${model.session}/finish`, reason);
  expect(present.open.size).toBe(1);
  release();
  expect(await samplesOf(await client.collect(request_id))).toEqual(expected);
  await new Promise(setImmediate);
  expect(present.open.size).toBe(0);
});

test("a snapshot survives the engine's death and does not use the dead engine", async () => {
  await step();
  const first = await snapshot();
  const expected = await sample(first);
  present.die();
  await new Promise(setImmediate);
  expect(await sample(first)).toEqual(expected);
});

test("a model that is trained for a long time keeps one policy", async () => {
  let last = "";
  for (let round = 0; round < 6; round++) {
    await step();
    last = await snapshot(round % 2 === 0 ? {} : { kind: "inflight" });
    await sample(last);
  }
  expect(present.open.size).toBe(1);
});
