/** A policy that a server samples: published weights reach the server, and the run notices if they do not. */
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { lora, madeUpSequences, madeUpWeights, numTrained, params, sampleOne, step } from "../conformance/tools.ts";
import type { Engine, Policy, Sampler } from "../engine.ts";
import { fakeServer } from "./fake-server.fixture.ts";
import { withServer } from "./with-server.ts";

const tabular = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz" });
const prompt = Int32Array.of(3, 4, 5);
const encode = (text: string) => Array.from(text, (_, index) => index % 20);

/** An engine that exports adapters which the fake server can load. */
const trainer: Engine = {
  ...tabular,
  async createPolicy(spec) {
    const { learner, sampler } = await tabular.createPolicy(spec);
    return { sampler, learner: { ...learner, export: (dir) => learner.saveState(dir) } };
  },
};

const root = temporaryFolder("with-server");
let folder: string;
let count = 0;
let adapters: Map<string, Sampler>;
let requests: string[];
let server: Awaited<ReturnType<typeof fakeServer>>;
let engine: Engine;
/** What the server does wrong. */
let fault: { ignores?: boolean; refuses?: boolean; tokens?: number[]; maxLength?: number; model?: Engine };

beforeEach(async () => {
  folder = join(root, `run-${++count}`, "adapters");
  adapters = new Map();
  requests = [];
  fault = {};
  const base = (await tabular.createPolicy({ adapter: { kind: "none" } })).sampler;
  server = await fakeServer("vllm", (name) => (name === "base" ? base : adapters.get(name)!), control);
  engine = withServer(trainer, { urls: [`${server.url}/v1/`], folder, encode });
});
afterEach(async () => {
  await engine.close();
  server.close();
});

async function control(path: string, body: Record<string, unknown>) {
  const name = String(body.lora_name);
  if (path === "/v1/models") {
    const loaded = [...adapters.keys()].map((id) => ({ id, root: join(folder, id), parent: "base" }));
    const data = [{ id: "base", root: "/models/base", parent: null, max_model_len: fault.maxLength ?? 512 }, ...loaded];
    return { text: JSON.stringify({ object: "list", data }) };
  }
  if (path === "/tokenize") return { text: JSON.stringify({ tokens: fault.tokens ?? encode(String(body.prompt)) }) };
  if (path === "/v1/unload_lora_adapter") {
    requests.push(`unload ${name.split("-").at(-1)}`);
    return adapters.delete(name) ? { text: "Success" } : { status: 404, text: "no such adapter" };
  }
  if (path !== "/v1/load_lora_adapter") return undefined;
  if (fault.refuses) return { status: 404, text: '{"detail":"Not Found"}' };
  requests.push(`load ${name.split("-").at(-1)}`);
  const theirs = await (fault.model ?? tabular).createPolicy({ adapter: lora() });
  await theirs.sampler.load(await theirs.learner.loadState(String(body.lora_path), { optimizer: false }));
  const last = [...adapters.values()].at(-1);
  adapters.set(name, fault.ignores && last ? last : theirs.sampler);
  return { text: `Success: LoRA adapter '${name}' added successfully.` };
}

async function trainStep({ learner, sampler }: Policy, seed: number): Promise<void> {
  const sequences = madeUpSequences(engine);
  await step(learner, sequences, madeUpWeights(numTrained(sequences), seed));
  await sampler.load(await learner.publish());
}
const versions = () =>
  readdirSync(folder)
    .map((name) => name.split("-").at(-1))
    .sort();
const ask = { prompt, params: params({ maxTokens: 8 }) };

describe("a policy that a server samples", () => {
  test("is sampled with each version that is published, and keeps two of them at the server", async () => {
    const policy = await engine.createPolicy({ adapter: lora() });
    expect((await sampleOne(policy, ask)).policyVersion).toBe(0);
    for (const version of [1, 2, 3]) {
      await trainStep(policy, version);
      const { tokens, logprobs, policyVersion } = await sampleOne(policy, ask);
      expect(policyVersion).toBe(version);
      const whole = Int32Array.of(...prompt, ...tokens);
      const trained = new Uint8Array(whole.length - 1).fill(1, prompt.length - 1);
      const own = await policy.learner.forward([{ tokens: whole, trained }], {});
      for (const [index, logprob] of own.logprobs.entries()) expect(logprobs[index]).toBeCloseTo(logprob, 5);
    }
    expect(requests).toEqual(["load v0", "load v1", "load v2", "unload v0", "load v3", "unload v1"]);
    // The folder of an unloaded adapter is removed one update later.
    expect(versions()).toEqual(["v1", "v2", "v3"]);
    expect(await engine.stats()).toMatchObject({
      "rollout/sync_seconds": expect.any(Number),
      "rollout/sync_probe_difference": expect.closeTo(0, 4),
    });
    await engine.close();
    expect([adapters.size, existsSync(folder)]).toEqual([0, false]);
  });

  test("keeps the version that a running request began with", async () => {
    const policy = await engine.createPolicy({ adapter: lora() });
    const running = policy.sampler.sample([{ ...ask, params: params({ maxTokens: 2 }) }])[Symbol.asyncIterator]();
    const first = running.next();
    for (const version of [1, 2, 3]) await trainStep(policy, version);
    expect((await first).value).toMatchObject({ policyVersion: 0 });
    expect(requests).not.toContain("unload v0");
    await running.next();
    await trainStep(policy, 4);
    expect(requests).toContain("unload v0");
  });

  test("a restored state is published under its version", async () => {
    const policy = await engine.createPolicy({ adapter: lora() });
    for (const version of [1, 2]) await trainStep(policy, version);
    const saved = join(root, `saved-${count}`);
    await policy.learner.saveState(saved);
    await policy.sampler.load(await policy.learner.loadState(saved, { optimizer: true }));
    expect((await sampleOne(policy, ask)).policyVersion).toBe(2);
    expect(versions().filter((version) => version === "v2")).toHaveLength(2);
  });

  test("a server that acknowledges an update without applying it stops the run", async () => {
    const policy = await engine.createPolicy({ adapter: lora() });
    await trainStep(policy, 1);
    fault.ignores = true;
    await expect(trainStep(policy, 2)).rejects.toMatchObject({ exitCode: 1, code: "sampler_mismatch" });
  });

  test("adapters that an earlier process left at the server are unloaded", async () => {
    await engine.createPolicy({ adapter: lora() });
    const again = withServer(trainer, { urls: [server.url], folder, encode });
    await again.createPolicy({ adapter: lora() });
    expect(requests).toEqual(["load v0", "unload v0", "load v0"]);
    await again.close();
  });

  test("its length is the smaller one of server and trainer", async () => {
    fault.maxLength = 77;
    await engine.createPolicy({ adapter: { kind: "none" } });
    expect(engine.model.maxLength).toBe(77);
  });

  test.each([
    ["another tokenizer", () => ({ tokens: [1, 2] }), /another tokenizer/],
    ["no adapters at run time", () => ({ refuses: true }), /answered 404 to \/v1\/load_lora_adapter/],
  ])("a server with %s is refused at the start", async (_, wrong, message) => {
    fault = wrong();
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toMatchObject({
      exitCode: 2,
      message: expect.stringMatching(message),
    });
  });

  test("a server with another model is refused at the start", async () => {
    fault.model = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz", logit: (next) => next / 4 });
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toThrow(
      /differ from the trainer's.*before any training/,
    );
  });

  test("all weights are refused", async () => {
    await expect(engine.createPolicy({ adapter: { kind: "full" } })).rejects.toThrow("only LoRA adapters");
  });

  test("a server that does not answer is named", async () => {
    server.close();
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toThrow(/inference server at http.*does not answer/);
  });
});
