/** Several servers of one model: who gets which request, and what happens when one of them fails. */
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { lora, params, sampleOne } from "../../../conformance/tools.ts";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Engine, Sample, SampleRequest, Sampler } from "../engine.ts";
import { servedEngine } from "./fake-policy-server.fixture.ts";
import { fakeServer } from "./fake-server.fixture.ts";
import { type ServerSamplerOptions, serverSampler } from "./sampler.ts";

const tabular = tabularEngine({
  alphabet: "abcdefghijklmnopqrstuvwxyz",
  logit: (next, last) => ((next * 7 + last) % 5) / 2,
});
const prompt = Int32Array.of(3, 4, 5);
const request = (seed: number, more: Partial<SampleRequest> = {}): SampleRequest => ({
  prompt,
  params: params({ maxTokens: 6, seed, ignoreEos: true }),
  ...more,
});

type Running = Awaited<ReturnType<typeof fakeServer>>;
let servers: Running[];
/** The prompts that each server was asked to continue. */
let asked: Int32Array[][];
/** Requests wait for it. */
let gate: Promise<void> | undefined;
let base: Sampler;
let notes: string[];
let sampler: Sampler;

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  base = (await tabular.createPolicy({ adapter: { kind: "none" } })).sampler;
  gate = undefined;
  notes = [];
  asked = [[], [], []];
  servers = [await start(0), await start(1), await start(2)];
  open();
});
afterEach(async () => {
  vi.useRealTimers();
  await sampler.close();
  for (const server of servers) server.close();
});

function start(index: number, port = 0): Promise<Running> {
  const counting: Sampler = {
    ...base,
    async *sample(requests, options) {
      asked[index]!.push(requests[0]!.prompt);
      await gate;
      yield* base.sample(requests, options);
    },
  };
  return fakeServer("vllm", () => counting, undefined, { port });
}
const restart = async (index: number) => {
  servers[index] = await start(index, Number(new URL(servers[index]!.url).port));
  vi.advanceTimersByTime(6000);
};
function open(options: Partial<ServerSamplerOptions> = {}) {
  sampler = serverSampler({ url: servers.map(({ url }) => url), onNote: (text) => notes.push(text), ...options });
}
async function sampleAll(requests: readonly SampleRequest[], from = sampler): Promise<Sample[]> {
  const samples: Sample[] = [];
  for await (const sample of from.sample(requests)) samples[sample.request] = sample;
  return samples;
}
const counts = () => asked.map((prompts) => prompts.length);
const nine = Array.from({ length: 9 }, (_, index) => request(index));
/** Until the servers have this many requests. */
const until = async (total: number) => {
  while (counts().reduce((sum, count) => sum + count) < total) await new Promise((resolve) => setImmediate(resolve));
};

describe("several servers", () => {
  test("share requests evenly, and give the samples of one", async () => {
    expect(await sampleAll(nine)).toEqual(await sampleAll(nine, base));
    expect(counts()).toEqual([3, 3, 3]);
  });

  test("requests of one session go to one server, unless it has much more to do than another", async () => {
    const session = {};
    for (let turn = 0; turn < 3; turn++) await sampleAll([request(turn, { session }), request(turn, { session: {} })]);
    expect(counts().toSorted()).toEqual([0, 3, 3]);
    await sampleAll(Array.from({ length: 40 }, (_, index) => request(index, { session })));
    expect(Math.max(...counts())).toBeLessThan(43);
  });

  test.each([
    ["closes", () => servers[1]!.close()],
    ["closes, with a slow reply on its way", () => void setTimeout(() => servers[1]!.close(), 20)],
  ])("a server that %s is left out, and the others sample the same", async (_, fail) => {
    let release = () => {};
    gate = new Promise((resolve) => {
      release = resolve;
    });
    const waiting = sampleAll(nine);
    await until(9);
    fail();
    while (notes.length === 0) await new Promise((resolve) => setImmediate(resolve));
    release();
    expect(await waiting).toEqual(await sampleAll(nine, base));
    expect(counts().reduce((sum, count) => sum + count)).toBe(12);
    expect(notes).toEqual([
      expect.stringMatching(/^the inference server at http\S+ does not answer \(.+\); its requests go to/),
    ]);
    await sampleAll(nine);
    expect(counts()[1]).toBe(3);
  });

  test("a server that is back gets requests again", async () => {
    servers[1]!.close();
    await sampleAll(nine);
    await restart(1);
    await sampleAll(nine);
    while (notes.length < 2) await new Promise((resolve) => setImmediate(resolve));
    expect(notes[1]).toMatch(/^the inference server at http\S+ is back$/);
    await sampleAll(nine);
    expect(counts()[1]).toBeGreaterThanOrEqual(3);
  });

  test("if all fail, one sentence names the last error; they are asked again later", async () => {
    for (const server of servers) server.close();
    await expect(sampleAll([request(0)])).rejects.toMatchObject({
      code: "server_unreachable",
      message: expect.stringMatching(/^none of the 3 inference servers answers; the one at http/),
    });
    await restart(2);
    expect(await sampleAll([request(0)])).toEqual(await sampleAll([request(0)], base));
  });

  test("a reply whose stream breaks is continued on another server, with the tokens that it has", async () => {
    const [whole] = await sampleAll([request(7)], base);
    const breaking = await fakeServer("vllm", () => ({
      ...base,
      async *sample(_, { onToken } = {}) {
        for (const [at, token] of whole!.tokens.subarray(0, 2).entries()) onToken?.(0, token, whole!.logprobs[at]!);
        await new Promise((resolve) => setTimeout(resolve, 10));
        breaking.close();
        yield* [];
      },
    }));
    await sampler.close();
    open({ url: [breaking.url, servers[0]!.url] });
    const streamed: number[] = [];
    const options = { onToken: (_: number, token: number) => streamed.push(token) };
    for await (const { tokens, logprobs, stopReason } of sampler.sample([request(7)], options)) {
      expect([tokens.length, logprobs.length, stopReason]).toEqual([6, 6, "length"]);
      expect([...tokens]).toEqual(streamed);
      expect([...tokens.subarray(0, 2)]).toEqual([...whole!.tokens.subarray(0, 2)]);
    }
    expect(asked[0]).toEqual([Int32Array.of(...prompt, ...whole!.tokens.subarray(0, 2))]);
  });

  test("a request that is refused is not sent to the others", async () => {
    const refusing = await fakeServer(
      "vllm",
      () => base,
      async () => ({ status: 400, text: "too long" }),
    );
    await sampler.close();
    open({ url: [refusing.url, servers[0]!.url] });
    const refused = await sampleAll([request(0)]).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(UserError);
    expect(String(refused)).toMatch(/answered 400: too long/);
    expect(counts()).toEqual([0, 0, 0]);
    refusing.close();
  });

  test("an address with a login is refused", () => {
    expect(() => serverSampler({ url: "http://me:secret@localhost:1" })).toThrow(
      /at http:\/\/localhost:1 contains a login/,
    );
  });
});

describe("a policy that several servers sample", () => {
  const folder = join(temporaryFolder("several-servers"), "adapters");
  const trainer: Engine = {
    ...tabular,
    async createPolicy(spec) {
      const { learner, sampler: own } = await tabular.createPolicy(spec);
      return { sampler: own, learner: { ...learner, export: (dir) => learner.saveState(dir) } };
    },
  };
  const apiKey = "the key";
  let adapters: Map<string, Sampler>[];
  let running: Running[];
  let engine: Engine;

  const startWith = (index: number, port = 0) => {
    adapters[index] = new Map();
    const own = adapters[index];
    return fakeServer("vllm", (name) => own.get(name)!, control(own), { port, apiKey });
  };
  beforeEach(async () => {
    adapters = [];
    running = [await startWith(0), await startWith(1)];
    engine = servedEngine(trainer, {
      urls: running.map(({ url }) => url),
      apiKey,
      folder,
      encode: (text) => Array.from(text, (_, index) => index % 20),
      onNote: (text) => notes.push(text),
    });
  });
  afterEach(async () => {
    await engine.close();
    for (const server of running) server.close();
  });

  const control =
    (own: Map<string, Sampler>) =>
    async (path: string, body: Record<string, unknown>): Promise<{ status?: number; text: string } | undefined> => {
      const name = String(body.lora_name);
      if (path === "/v1/models") {
        const loaded = [...own.keys()].map((id) => ({ id, root: join(folder, id), parent: "base" }));
        return { text: JSON.stringify({ data: [{ id: "base", max_model_len: 512 }, ...loaded] }) };
      }
      if (path === "/tokenize")
        return { text: JSON.stringify({ tokens: Array.from(String(body.prompt), (_, index) => index % 20) }) };
      if (path === "/v1/unload_lora_adapter") {
        return own.delete(name) ? { text: "Success" } : { status: 404, text: "not found" };
      }
      if (path !== "/v1/load_lora_adapter") return undefined;
      if (own.has(name)) return { status: 400, text: "it has already been loaded" };
      const theirs = await tabular.createPolicy({ adapter: lora() });
      await theirs.sampler.load(await theirs.learner.loadState(String(body.lora_path), { optimizer: false }));
      own.set(name, theirs.sampler);
      return { text: "Success" };
    };
  const versions = () => adapters.map((own) => [...own.keys()].map((name) => name.split("-").at(-1)));

  test("reaches all of them with each version; one that comes back gets what it missed", async () => {
    const { learner, sampler: policy } = await engine.createPolicy({ adapter: lora() });
    const publish = async () => policy.load(await learner.publish());
    await publish();
    expect(versions()).toEqual([
      ["v0", "v1"],
      ["v0", "v1"],
    ]);
    running[1]!.close();
    await publish();
    expect(await engine.stats()).toMatchObject({ "rollout/servers": 1, "rollout/server_retries": 0 });
    running[1] = await startWith(1, Number(new URL(running[1]!.url).port));
    vi.advanceTimersByTime(6000);
    await publish();
    expect(versions()).toEqual([
      ["v2", "v3"],
      ["v2", "v3"],
    ]);
    expect(await engine.stats()).toMatchObject({ "rollout/servers": 2 });
    expect(notes.map((note) => note.replace(/http\S+/, "URL"))).toEqual([
      expect.stringMatching(/^the inference server at URL does not answer/),
      "the inference server at URL is back",
    ]);
  });

  test("asks another server for the samples of one that fails, and counts them", async () => {
    const policy = await engine.createPolicy({ adapter: lora() });
    const first = await sampleOne(policy, request(1));
    running[0]!.close();
    expect(await sampleOne(policy, request(1))).toEqual(first);
    expect(await engine.stats()).toMatchObject({ "rollout/servers": 1, "rollout/server_retries": 1 });
    expect(await engine.stats()).toMatchObject({ "rollout/server_retries": 0 });
  });

  test("all must answer at the start", async () => {
    running[1]!.close();
    await expect(engine.createPolicy({ adapter: lora() })).rejects.toMatchObject({
      code: "server_unreachable",
      message: expect.stringMatching(/^the inference server at http\S+ does not answer/),
    });
  });
});
