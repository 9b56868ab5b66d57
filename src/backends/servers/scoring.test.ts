import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/index.ts";
import { composeEngine, EngineDied } from "../engine-parts.ts";
import { scoringLaunch } from "./launch.ts";
import { type ScoringServersOptions, servedScorers } from "./scoring.ts";
import { type ScoringServer, type ScoringServerOptions, scoringServer } from "./scoring-server.fixture.ts";

const root = temporaryFolder("scoring");
const open: ScoringServer[] = [];
afterEach(() => {
  for (const server of open.splice(0)) server.close();
});

async function serve(options?: ScoringServerOptions): Promise<ScoringServer> {
  const server = await scoringServer(options);
  open.push(server);
  return server;
}

function engineWith(urls: readonly string[], options: Partial<ScoringServersOptions> = {}) {
  const scorers = servedScorers({
    urls,
    models: ["judge"],
    batchSize: 2,
    retries: 2,
    pauseSeconds: 0.001,
    timeoutSeconds: 5,
    async directoryOf(model) {
      const directory = join(root, model);
      mkdirSync(directory, { recursive: true });
      writeFileSync(join(directory, "config.json"), JSON.stringify({ max_position_embeddings: 50 }));
      return directory;
    },
    encode: () => [1, 2],
    start: () => Promise.reject(new Error("not expected to start")),
    ...options,
  });
  return composeEngine({ trainer: tabularEngine({ alphabet: "ab" }), scorers });
}

const sequences = [[1], [2, 3], [4], [5, 6, 7], [8]].map((tokens) => Int32Array.from(tokens));

test.each(["vllm", "vllm-per-token", "sglang"] as const)(
  "%s scores in batches, in the order of the sequences",
  async (kind) => {
    const server = await serve({ kind });
    const engine = engineWith([`${server.url}/v1/`]);
    const scorer = await engine.createScorer!("judge");
    expect(await scorer.score(sequences)).toEqual(Float32Array.of(1, 5, 4, 18, 8));
    expect(server.batches.toSorted()).toEqual([1, 1, 2, 2]);
    expect(scorer.model).toEqual({ name: "judge", directory: join(root, "judge"), maxLength: 50 });
    expect(engine.capabilities.outputs).toContain("scores");
  },
);

test("the server's limit on the length counts where it is below the model's", async () => {
  const server = await serve({ maxLength: 20 });
  expect((await engineWith([server.url]).createScorer!("judge")).model.maxLength).toBe(20);
});

test("the API key is sent", async () => {
  const { url } = await serve({ apiKey: "secret" });
  await expect(engineWith([url]).createScorer!("judge")).rejects.toThrow("answered 401 to /v1/models");
  const scorer = await engineWith([url], { apiKey: "secret" }).createScorer!("judge");
  expect(await scorer.score([Int32Array.of(3)])).toEqual(Float32Array.of(3));
});

test("without addresses a server is started for the model, and ended with the engine", async () => {
  const { url } = await serve({ apiKey: "secret" });
  const started: string[] = [];
  let reportDeath: (reason: EngineDied) => void = () => {};
  const died = new Promise<EngineDied>((resolve) => {
    reportDeath = resolve;
  });
  let alive = true;
  const engine = engineWith([], {
    async start(directory) {
      started.push(directory);
      const stop = async () => void started.push("stop");
      return { url, apiKey: "secret", answers: async () => alive, died, stop };
    },
  });
  const scorer = await engine.createScorer!("judge");
  expect(await scorer.score([Int32Array.of(3)])).toEqual(Float32Array.of(3));
  alive = false;
  reportDeath(new EngineDied("the vLLM server was killed"));
  for (const server of open.splice(0)) server.close();
  await expect(scorer.score([Int32Array.of(3)])).rejects.toThrow("the vLLM server was killed");
  expect(await engine.died).toBeInstanceOf(EngineDied);
  await engine.close();
  expect(started).toEqual([join(root, "judge"), "stop"]);
});

test("a model that vLLM cannot score with is refused before a server is started", async () => {
  const directory = join(root, "value-head");
  mkdirSync(directory, { recursive: true });
  writeFileSync(join(directory, "config.json"), JSON.stringify({ architectures: ["LlamaForCausalLM"] }));
  const engine = engineWith([], { directoryOf: async () => directory });
  await expect(engine.createScorer!("judge")).rejects.toThrow("vLLM cannot score with judge, a LlamaForCausalLM");
});

test("the command line of a server that Hone starts", () => {
  const place = { servedName: "hone-1", port: 8123, apiKey: "secret" };
  const machine = { freeBytes: 2 ** 34, environment: {}, threads: {} };
  const onCpu = scoringLaunch(
    { directory: "/judge", dtype: "float32", tensorParallel: 1, gpu: undefined },
    place,
    machine,
  );
  const start = ["-m", "vllm.entrypoints.openai.api_server", "--model", "/judge", "--runner", "pooling"];
  expect(onCpu.args.slice(0, 6)).toEqual(start);
  expect(onCpu.args).toContain("--enforce-eager");
  expect(onCpu.env).toMatchObject({ VLLM_API_KEY: "secret", VLLM_CPU_KVCACHE_SPACE: "2" });
  const gpu = { visible: "1", memoryShare: 0.3, sleep: false };
  const onGpu = scoringLaunch({ directory: "/judge", dtype: "bfloat16", tensorParallel: 2, gpu }, place, machine);
  expect(onGpu.args.join(" ")).toContain("--tensor-parallel-size 2 --gpu-memory-utilization 0.3");
  expect(onGpu.env).toMatchObject({ CUDA_VISIBLE_DEVICES: "1" });
});

test("several servers of one model share its batches", async () => {
  const servers = [await serve(), await serve()];
  const scorer = await engineWith(servers.map(({ url }) => url)).createScorer!("judge");
  await scorer.score(Array.from({ length: 8 }, () => Int32Array.of(1)));
  expect(servers.map(({ batches }) => batches)).toEqual([
    [1, 2, 2],
    [1, 2, 2],
  ]);
});

test("each of several models is asked at its own servers", async () => {
  const [kind, safe] = [await serve({ model: "org/kind" }), await serve({ model: "./safe" })];
  const engine = engineWith([kind.url, safe.url], { models: ["kind", "safe"] });
  await (await engine.createScorer!("safe")).score(sequences);
  expect([kind.batches.length, safe.batches.length]).toEqual([0, 4]);
});

test("a request that fails is repeated on another server, and counted", async () => {
  const ill = await serve({ status: (request) => (request === 0 ? 200 : 503) });
  const well = await serve();
  const engine = engineWith([ill.url, well.url]);
  const scorer = await engine.createScorer!("judge");
  expect(await scorer.score(sequences)).toEqual(Float32Array.of(1, 5, 4, 18, 8));
  expect(await scorer.score(sequences)).toEqual(Float32Array.of(1, 5, 4, 18, 8));
  expect(scorer.retries).toBeGreaterThan(0);
  expect(await engine.stats()).toMatchObject({ "reward_model/judge_retries": scorer.retries });
  expect(ill.batches).toEqual([1]);
});

test("a server that does not answer is left out, and noted", async () => {
  const [lost, well] = [await serve(), await serve()];
  const notes: string[] = [];
  const onNote = (text: string) => notes.push(text);
  const scorer = await engineWith([lost.url, well.url], { onNote }).createScorer!("judge");
  lost.close();
  expect(await scorer.score(sequences)).toEqual(Float32Array.of(1, 5, 4, 18, 8));
  const { retries } = scorer;
  expect(retries).toBeGreaterThan(0);
  expect(notes).toEqual([expect.stringContaining(`the inference server at ${lost.url} does not answer`)]);
  await scorer.score(sequences);
  expect(scorer.retries).toBe(retries);
});

test("a server that stays down fails after the retries", async () => {
  const server = await serve({ status: (request) => (request === 0 ? 200 : 500) });
  const scorer = await engineWith([server.url]).createScorer!("judge");
  await expect(scorer.score([Int32Array.of(1)])).rejects.toThrow("answered 500");
  expect(scorer.retries).toBe(2);
});

test("closing the engine ends requests in progress", async () => {
  const server = await serve({ status: (request) => (request === 0 ? 200 : 500) });
  const engine = engineWith([server.url], { pauseSeconds: 100 });
  const scorer = await engine.createScorer!("judge");
  const failed = expect(scorer.score(sequences)).rejects.toThrow("the reward model was closed");
  await engine.close();
  await failed;
});

test.each<[string, ScoringServerOptions, Partial<ScoringServersOptions>, string]>([
  ["another tokenizer", { tokens: [7] }, {}, "whose tokenizer is not that of judge"],
  ["several labels", { labels: 2 }, {}, "gives a sequence 2 numbers; a reward model gives one"],
  ["no scores", { status: () => 404 }, {}, "does not score sequences"],
  [
    "a model that is not named",
    { model: "other" },
    { models: ["judge", "kind"] },
    "no server of rllm.reward.engine_url serves judge",
  ],
])("a server with %s is refused", async (_what, options, more, message) => {
  const { url } = await serve(options);
  await expect(engineWith([url], more).createScorer!("judge")).rejects.toThrow(message);
});

test("a server that no reward model belongs to is refused, and so is an address without a server", async () => {
  const servers = [await serve({ model: "judge" }), await serve({ model: "kind" }), await serve({ model: "stray" })];
  const engine = engineWith(
    servers.map(({ url }) => url),
    { models: ["judge", "kind"] },
  );
  await expect(engine.createScorer!("judge")).rejects.toThrow("serves stray, which rllm.reward.model does not name");
  await expect(engineWith(["http://127.0.0.1:9"]).createScorer!("judge")).rejects.toMatchObject({
    code: "server_unreachable",
    message: expect.stringMatching("^the inference server at http://127.0.0.1:9 does not answer: "),
    hint: "start it, or correct rllm.reward.engine_url",
  });
});
