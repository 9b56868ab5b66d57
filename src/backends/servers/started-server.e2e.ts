/** A real vLLM server on the CPU, started by Hone, samples for the local engine with a model that reads images. One server for all tests. */
import { createServer, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { samplerChecks } from "../../../conformance/conformance.ts";
import {
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  params,
  step,
} from "../../../conformance/tools.ts";
import { singleTurn } from "../../agents/workflows.ts";
import { listen } from "../../base/http.ts";
import { makeTinyVisionModel } from "../../base/python.fixture.ts";
import { mean } from "../../base/values.ts";
import { renderWithImages } from "../../chat/images.ts";
import { openTokenizer } from "../../chat/tokenizer.ts";
import { composeConfig } from "../../config/compose.ts";
import { generated } from "../../data/dataset.ts";
import { png } from "../../images/pictures.fixture.ts";
import { visionOf } from "../../rollout/session.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { openChat } from "../backends.ts";
import type { Engine, Policy, Sampler } from "../engine.ts";
import { composeEngine } from "../engine-parts.ts";
import { openLocalEngine } from "../local/engine.ts";
import { capabilitiesWith, localEngineOptions } from "../local/options.ts";
import { servedPolicies } from "./policies.ts";
import type { ServerProcess } from "./process.ts";
import { startSamplingServer } from "./start-servers.ts";

const root = temporaryFolder("started-server");
const model = join(root, "qwen2_vl");
const config = () =>
  composeConfig({
    overrides: [
      `model.name=${model}`,
      "model.lora_rank=4",
      "local={device: cpu, dtype: float32, threads: 1, sampler: {type: vllm}}",
    ],
  }).config;
let local: Engine;
let server: ServerProcess;
let engine: Engine;
let encode: (text: string) => ArrayLike<number>;

beforeAll(async () => {
  await makeTinyVisionModel(root, "qwen2_vl", 32);
  const hooks = { logFile: join(root, "worker.log") };
  local = await openLocalEngine(localEngineOptions(config(), hooks));
  server = await startSamplingServer(config(), local, hooks);
  const tokenizer = openTokenizer(local.model.directory);
  encode = (written) => tokenizer.encode(written);
  const programs = [{ died: server.died, close: server.stop }];
  engine = composeEngine({ trainer: local, samplers: through(server.url, "adapters", server), programs });
});
afterAll(() => engine?.close() ?? local?.close());

const through = (url: string, folder: string, own?: ServerProcess) =>
  servedPolicies(local, {
    ...{ urls: [url], apiKey: server.apiKey, folder: join(root, folder), encode },
    ...(own ? { own } : {}),
  });

async function trainStep({ learner, sampler }: Policy, seed: number): Promise<void> {
  const sequences = madeUpSequences(local);
  await step(learner, sequences, madeUpWeights(numTrained(sequences), seed));
  await sampler.load(await learner.publish());
}

describe("a sampler of vLLM", () => {
  let policy: Policy;
  beforeAll(async () => {
    policy = await engine.createPolicy({ adapter: lora() });
    await trainStep(policy, 1);
  });
  const checks = samplerChecks.filter(({ needs }) => needs?.(capabilitiesWith("vllm")) ?? true);
  it.each(checks)("$name", ({ check }) => check({ sampler: policy.sampler, model: engine.model }, { tolerance: 1e-4 }));

  it("reads images as the trainer does, also those that are resized", () => expectSameImages(policy));
});

it("the local sampler reads images as the trainer does", async () => {
  await expectSameImages(await local.createPolicy({ adapter: { kind: "full" } }));
});

async function expectSameImages({ sampler, learner }: Policy): Promise<void> {
  const sequences = await sampledBesideImages(sampler);
  const forward = async (given: readonly Sequence[]) => [...(await learner.forward(given, {})).logprobs];
  const computed = await forward(sequences.map(({ sequence }) => sequence));
  const sampled = sequences.flatMap(({ logprobs }) => [...logprobs]);
  for (const [index, value] of sampled.entries()) expect(computed[index]).toBeCloseTo(value, 4);
  const [red, blue] = sequences.map(({ sequence }) => sequence);
  expect(red!.tokens.slice(0, -6)).toEqual(blue!.tokens.slice(0, -6));
  const swapped = await forward([{ ...red!, media: blue!.media! }]);
  expect(Math.max(...swapped.map((value, index) => Math.abs(value - computed[index]!)))).toBeGreaterThan(1e-3);
}

/** Replies to a red and a blue picture, to two pictures, and to none. */
async function sampledBesideImages(sampler: Sampler): Promise<{ sequence: Sequence; logprobs: Float32Array }[]> {
  const chat = await openChat(engine.model.directory, config(), () => {});
  const picture = (width: number, color: [number, number, number]) =>
    ({ type: "image", image: png(width, 28, color) }) as const;
  const [red, blue] = [picture(20, [255, 0, 0]), picture(20, [0, 0, 255])];
  const ask = (...images: (typeof red)[]) =>
    renderWithImages(chat, visionOf(engine), [{ role: "user", content: [...images, { type: "text", text: "What?" }] }]);
  const prompts = [await ask(red), await ask(blue), await ask(picture(61, [9, 200, 9]), red), await ask()];
  const requests = prompts.map(({ tokens, media }) => ({
    prompt: tokens,
    media,
    params: params({ maxTokens: 6, ignoreEos: true }),
  }));
  const replies: { sequence: Sequence; logprobs: Float32Array }[] = [];
  for await (const { request, tokens, logprobs } of sampler.sample(requests)) {
    const { prompt, media } = requests[request]!;
    const trained = new Uint8Array(prompt.length + tokens.length - 1).fill(1, prompt.length - 1);
    replies[request] = { sequence: { tokens: Int32Array.from([...prompt, ...tokens]), trained, media }, logprobs };
  }
  return replies;
}

const share = (reply: string) => [...reply].filter((letter) => letter >= "a" && letter <= "z").length / 8;

async function history(name: string, of: Engine, settings: { rank: number; rate: number }) {
  const trained = await train(
    {
      train: generated("toy", 256, (index) => ({ index })),
      workflow: singleTurn({ prompt: ({ index }) => `say ${index}`, reward: (_, { text: reply }) => share(reply) }),
      config: {
        model: { name: model, lora_rank: settings.rank, train_unembed: settings.rank === 0 },
        rllm: {
          rollout: { n: 8 },
          trainer: {
            total_batches: 5,
            logger: [],
            save_freq: 0,
            test_freq: 0,
            run_dir: join(root, name),
          },
        },
        training: { learning_rate: settings.rate },
        data: { train_batch_size: 4, max_response_length: 8 },
      },
    },
    { engine: { engine: of, chat: await openChat(of.model.directory, config(), () => {}) } },
  );
  return trained.history.map(({ metrics }) => metrics);
}

const adapters = { rank: 4, rate: 0.01 };
const allWeights = { rank: 0, rate: 0.003 };

function expectRise(metrics: Awaited<ReturnType<typeof history>>): void {
  const rewards = metrics.map((step) => step["reward/mean"] ?? Number.NaN);
  expect(mean(rewards.slice(-2)) - mean(rewards.slice(0, 2))).toBeGreaterThan(0.2);
}

async function expectToLearn(name: string, settings: typeof adapters): Promise<void> {
  const metrics = await history(name, engine, settings);
  expectRise(metrics);
  for (const step of metrics) {
    expect(step["rollout/logprob_diff_mean"]).toBeLessThan(1e-3);
    expect(step["rollout/sync_probe_difference"]).toBeLessThan(1e-3);
  }
}

it("the reward rises as with the local sampler, and the log-probabilities agree", async () => {
  expectRise(await history("own", local, adapters));
  await expectToLearn("served", adapters);
});

/** In front of the server: acknowledges new adapters, but keeps the first one under their names. */
async function staleProxy() {
  let first: string | undefined;
  const proxy = createServer(async (request: IncomingMessage, response) => {
    const body = request.method === "POST" ? JSON.parse(await text(request)) : undefined;
    if (request.url === "/v1/load_lora_adapter") body.lora_path = first ??= body.lora_path;
    const answer = await fetch(server.url + request.url, {
      method: request.method ?? "GET",
      headers: { "content-type": "application/json", authorization: request.headers.authorization ?? "" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    response.writeHead(answer.status, { "content-type": "application/json" }).end(await answer.text());
  });
  return { proxy, url: await listen(proxy) };
}

it("a server that acknowledges an adapter without applying it is caught with the next weights", async () => {
  const { proxy, url } = await staleProxy();
  try {
    const deceived = through(url, "deceived");
    const policy = await deceived.createPolicy({ adapter: lora() });
    await expect(trainStep(policy, 1)).rejects.toMatchObject({ exitCode: 1, code: "sampler_mismatch" });
    await policy.sampler.close();
  } finally {
    proxy.close();
    proxy.closeAllConnections();
  }
});

// After the tests of adapters, since the server's own weights change.
it("all weights reach the server, and the reward rises", () => expectToLearn("all", allWeights));

it("a server that is killed ends requests and the engine with a sentence", async () => {
  const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
  const request = { prompt: madeUpTokens(engine, 1, 4), params: params({ maxTokens: 2000, ignoreEos: true }) };
  const sampling = (async () => {
    const onToken = () => process.kill(server.pid, "SIGKILL");
    // On a busy machine, a single reply may be complete before its first token is read.
    for await (const _sample of sampler.sample(Array(16).fill(request), { onToken }));
  })();
  await expect(sampling).rejects.toThrow(/^the vLLM server ended by SIGKILL: .*memory/);
  expect((await engine.died)?.message).toMatch(/^the vLLM server ended by SIGKILL/);
});
