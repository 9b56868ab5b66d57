/** A policy that a server samples: published weights reach the server, and the run notices if they do not. */
import { existsSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import {
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  params,
  sampleOne,
  step,
} from "../../../conformance/tools.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { AdapterSpec, Engine, Policy, Sample } from "../engine.ts";
import {
  encode,
  exportingEngine,
  type FakePolicyServer,
  fakePolicyServer,
  servedEngine,
} from "./fake-policy-server.fixture.ts";

const prompt = Int32Array.of(3, 4, 5);
const ask = { prompt, params: params({ maxTokens: 8 }) };
const full: AdapterSpec = { kind: "full" };

const root = temporaryFolder("served-policies");
let folder: string;
let count = 0;
let server: FakePolicyServer;
let notes: string[];
let engine: Engine;

async function open(kind: "vllm" | "sglang" = "vllm", generates = false, broadcastTo?: number): Promise<void> {
  folder = join(root, `run-${++count}`, "weights");
  server = await fakePolicyServer(kind, generates);
  notes = [];
  const onNote = (text: string) => notes.push(text);
  engine = servedEngine(exportingEngine, { urls: [`${server.url}/v1/`], kind, folder, encode, onNote, broadcastTo });
}
afterEach(async () => {
  await engine.close();
  server.close();
});

async function trainStep({ learner, sampler }: Policy, seed: number): Promise<void> {
  const sequences = madeUpSequences(engine);
  await step(learner, sequences, madeUpWeights(numTrained(sequences), seed));
  await sampler.load(await learner.publish());
}

/** Samples, and compares the log-probabilities with the learner's. */
async function expectAgreement(policy: Policy, version: number): Promise<void> {
  const { tokens, logprobs, policyVersion } = await sampleOne(policy, ask);
  expect(policyVersion).toBe(version);
  const whole = Int32Array.of(...prompt, ...tokens);
  const trained = new Uint8Array(whole.length - 1).fill(1, prompt.length - 1);
  const own = await policy.learner.forward([{ tokens: whole, trained }], {});
  for (const [index, logprob] of own.logprobs.entries()) expect(logprobs[index]).toBeCloseTo(logprob, 5);
}

const versionsIn = (path: string) =>
  readdirSync(path)
    .map((name) => name.split("-").at(-1))
    .sort();

test.each([false, true])(
  "weights that are published in the middle of a reply continue it (streamed: %s)",
  async (streams) => {
    await open("vllm", true);
    const policy = await engine.createPolicy({ adapter: lora() });
    expect(policy.sampler.servers).toMatch(/\/inference\/v1\/generate\)$/);
    const [first] = server.adapters.values();
    const { sampler } = first!;
    let begun = () => {};
    const isBegun = new Promise<void>((resolve) => {
      begun = resolve;
    });
    first!.sampler = {
      ...sampler,
      async *sample([request], options = {}) {
        const short = { ...request!, params: { ...request!.params, maxTokens: 3 } };
        for await (const sample of sampler.sample([short], options)) {
          await new Promise((resolve) => {
            options.signal?.addEventListener("abort", resolve);
            begun();
          });
          yield { ...sample, stopReason: "aborted" };
        }
      },
    };
    const tokens: number[] = [];
    const onToken = (_: number, token: number) => void tokens.push(token);
    const request = { prompt, params: params({ maxTokens: 8, ignoreEos: true }), topLogprobs: 1 };
    const running = policy.sampler.sample([request], streams ? { onToken } : {})[Symbol.asyncIterator]();
    const waiting = running.next();
    await isBegun;
    await trainStep(policy, 1);
    const sample: Sample = (await waiting).value!;
    expect(sample).toMatchObject({ stopReason: "length", policyVersion: 1 });
    expect([...sample.tokenVersions!]).toEqual([0, 0, 0, 1, 1, 1, 1, 1]);
    expect([sample.tokens.length, sample.topLogprobs?.length]).toEqual([8, 8]);
    if (streams) expect(tokens).toEqual([...sample.tokens]);
    const whole = Int32Array.of(...prompt, ...sample.tokens);
    const trained = new Uint8Array(whole.length - 1).fill(1, prompt.length + 2);
    const own = await policy.learner.forward([{ tokens: whole, trained }], {});
    for (const [index, logprob] of own.logprobs.entries()) expect(sample.logprobs[index + 3]).toBeCloseTo(logprob, 5);
    // Nothing is sampled with the old version any more.
    await trainStep(policy, 2);
    expect(server.requests).toContain("unload v0");
  },
);

test("all weights are broadcast to a server with GPUs of its own, without files", async () => {
  await open("vllm", false, 2);
  const policy = await engine.createPolicy({ adapter: full });
  expect(policy.sampler.servers).toMatch(/, which gets all weights by NCCL$/);
  await expectAgreement(policy, 0);
  for (const version of [1, 2]) {
    await trainStep(policy, version);
    await expectAgreement(policy, version);
  }
  expect(server.requests).toEqual(["join", "received v0", "received v1", "received v2"]);
  expect(existsSync(folder)).toBe(false);
  server.fault = { ignores: true };
  await expect(trainStep(policy, 3)).rejects.toThrow("does not sample with it");
});

test("a server that cannot join the group stops the run with a way out", async () => {
  await open("vllm", false, 1);
  server.fault = { refuses: true };
  await expect(engine.createPolicy({ adapter: full })).rejects.toMatchObject({
    message: expect.stringMatching(/^NCCL did not connect the trainer and the inference server: .* no transfer$/),
    hint: expect.stringContaining("local.sampler.url"),
  });
});

describe.each(["vllm", "sglang"] as const)("a policy that %s samples", (kind) => {
  test("is sampled with each adapter that is published, two of which stay at the server", async () => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter: lora() });
    await expectAgreement(policy, 0);
    for (const version of [1, 2, 3]) {
      await trainStep(policy, version);
      await expectAgreement(policy, version);
    }
    expect(server.requests).toEqual(["load v0", "load v1", "load v2", "unload v0", "load v3", "unload v1"]);
    // The folder of an unloaded adapter is removed one update later.
    expect(versionsIn(folder)).toEqual(["v1", "v2", "v3"]);
    expect(await engine.stats()).toMatchObject({
      "rollout/sync_seconds": expect.any(Number),
      "rollout/sync_probe_difference": expect.closeTo(0, 4),
    });
    await engine.close();
    expect([server.adapters.size, existsSync(folder)]).toEqual([0, false]);
  });

  test("is sampled with all weights that are published, the last of which are kept", async () => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter: full });
    await expectAgreement(policy, 0);
    for (const version of [1, 2]) {
      await trainStep(policy, version);
      await expectAgreement(policy, version);
    }
    expect(server.requests).toEqual(["weights v0", "weights v1", "weights v2"]);
    const used = dirname(server.weights);
    expect(versionsIn(used)).toEqual(["v2"]);
    await engine.close();
    expect(existsSync(used)).toBe(false);
  });

  test("without a way to end requests, each keeps the version that it began with", async () => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter: lora() });
    expect(policy.sampler.servers).toMatch(/, which keeps a reply's weights until it ends$/);
    const [first] = server.adapters.values();
    const { sampler } = first!;
    let release = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    first!.sampler = {
      ...sampler,
      async *sample(requests, options) {
        await gate;
        yield* sampler.sample(requests, options);
      },
    };
    const running = sampleOne(policy, ask);
    for (const version of [1, 2, 3]) await trainStep(policy, version);
    expect(server.requests).not.toContain("unload v0");
    release();
    expect(await running).toMatchObject({ policyVersion: 0 });
    await trainStep(policy, 4);
    expect(server.requests).toContain("unload v0");
  });

  test.each([lora(), full])("a restored state is published under its version: $kind", async (adapter) => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter });
    for (const version of [1, 2]) await trainStep(policy, version);
    const saved = join(root, `saved-${count}`);
    await policy.learner.saveState(saved);
    await trainStep(policy, 3);
    await policy.sampler.load(await policy.learner.loadState(saved, { optimizer: true }));
    await expectAgreement(policy, 2);
  });

  test.each([lora(), full])("an update that is acknowledged but not applied stops the run: $kind", async (adapter) => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter });
    await trainStep(policy, 1);
    server.fault.ignores = true;
    await expect(trainStep(policy, 2)).rejects.toMatchObject({ exitCode: 1, code: "sampler_mismatch" });
  });

  test.each([lora(), full])("an update that a server missed is sent again: $kind", async (adapter) => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter });
    await trainStep(policy, 1);
    const repeated = async () => (await engine.stats())["rollout/sync_repeated"];
    expect(await repeated()).toBe(0);
    server.fault = {
      get ignores() {
        return notes.length === 0;
      },
    };
    await trainStep(policy, 2);
    await expectAgreement(policy, 2);
    expect(await repeated()).toBe(1);
    expect(notes).toEqual([
      expect.stringMatching(
        /^sending version 2 of the weights again, because the inference server at .* does not sample with it/,
      ),
    ]);
    await trainStep(policy, 3);
    await expectAgreement(policy, 3);
    expect(await repeated()).toBe(0);
  });

  test("the first update of a resumed run that is not applied stops it, if the server has the killed run's weights", async () => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter: full });
    for (const version of [1, 2]) await trainStep(policy, version);
    // The server of a killed run keeps its weights. They are close to the new ones, as an imprecise server's would be.
    const again = servedEngine(exportingEngine, { urls: [server.url], kind, folder: `${folder}-again`, encode });
    server.fault.ignores = true;
    await expect(again.createPolicy({ adapter: full })).rejects.toMatchObject({
      code: "sampler_mismatch",
      message: expect.stringMatching(/version 0 of the weights, but still samples with those of an earlier run$/),
    });
    server.fault.ignores = false;
    await again.createPolicy({ adapter: full });
    await again.close();
  });

  test("weights with another label than the run's stop it", async () => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter: full });
    server.fault.label = "another run's";
    await expect(trainStep(policy, 1)).rejects.toThrow(/version 1 of the weights, but reports "another run's"/);
  });

  test.each([lora(), full])("a server that was restarted gets the next weights: $kind", async (adapter) => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter });
    for (const version of [1, 2]) await trainStep(policy, version);
    await server.restart();
    await trainStep(policy, 3);
    await expectAgreement(policy, 3);
  });

  test.each([lora(), full])("a server that was restarted gets the last weights again: $kind", async (adapter) => {
    await open(kind);
    const policy = await engine.createPolicy({ adapter });
    await trainStep(policy, 1);
    await server.restart();
    await expectAgreement(policy, 1);
    expect(notes).toEqual([expect.stringContaining("was restarted and got the run's weights again")]);
    expect(await engine.stats()).toMatchObject({ "rollout/server_retries": 1 });
  });

  test("sleeps while the trainer works, if it shares its GPU", async () => {
    await open(kind);
    expect((await engine.createPolicy({ adapter: lora() })).sampler.sleep).toBeUndefined();
    const shared = servedEngine(exportingEngine, { urls: [server.url], kind, folder, encode, sleeps: true });
    const { sampler } = await shared.createPolicy({ adapter: full });
    await sampler.sleep?.();
    await sampler.wake?.();
    expect(server.requests.slice(-2)).toEqual(["sleep", "wake"]);
    await shared.close();
  });
});

describe("at the start", () => {
  test("adapters that an earlier process left at the server are unloaded", async () => {
    await open();
    await engine.createPolicy({ adapter: lora() });
    const again = servedEngine(exportingEngine, { urls: [server.url], folder, encode });
    await again.createPolicy({ adapter: lora() });
    expect(server.requests).toEqual(["load v0", "unload v0", "load v0"]);
    await again.close();
  });

  test("the server's limit on the length is the sampler's", async () => {
    await open();
    server.fault.maxLength = 77;
    const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
    expect(sampler.maxLength).toBe(77);
  });

  test.each([
    ["another tokenizer", lora(), { tokens: [1, 2] }, /the tokenizer of .* differs from that of/],
    ["no adapters at run time", lora(), { refuses: true }, /answered 404 to \/v1\/load_lora_adapter/],
    ["no control over its weights", full, { refuses: true }, /answered 500 to \/collective_rpc/],
  ])("a server with %s is refused", async (_, adapter, fault, message) => {
    await open();
    server.fault = fault;
    await expect(engine.createPolicy({ adapter })).rejects.toMatchObject({
      exitCode: 2,
      message: expect.stringMatching(message),
    });
  });

  test("a server with another model is refused", async () => {
    await open();
    server.fault.model = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz", logit: (next) => next / 4 });
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toThrow(
      /differ from the trainer's.*before any training/,
    );
  });

  test("a server that does not answer is named", async () => {
    await open();
    server.close();
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toThrow(/inference server at http.*does not answer/);
  });
});
