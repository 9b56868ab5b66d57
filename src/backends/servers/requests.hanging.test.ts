/** Servers that accept requests and do not answer them. */
// Slow: servers that do not answer in time.

import { createServer, type RequestListener, type Server } from "node:http";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, test } from "vitest";
import { params } from "../../../conformance/tools.ts";
import { listen } from "../../base/http.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Sample, SampleOptions, Sampler } from "../engine.ts";
import { openAsk } from "./control.ts";
import { fakeServer } from "./fake-server.fixture.ts";
import { type GroupOptions, openServers, type ServerGroup } from "./group.ts";
import { sampleFrom } from "./sampler.ts";

const tabular = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz" });
const request = { prompt: Int32Array.of(3, 4, 5), params: params({ maxTokens: 6, seed: 1, ignoreEos: true }) };

let base: Sampler;
let working: Awaited<ReturnType<typeof fakeServer>>;
let hanging: Server | undefined;
let group: ServerGroup;
let notes: string[];

beforeEach(async () => {
  base = (await tabular.createPolicy({ adapter: { kind: "none" } })).sampler;
  working = await fakeServer("vllm", () => base);
  notes = [];
});
afterEach(async () => {
  await group.close();
  working.close();
  hanging?.closeAllConnections();
  hanging?.close();
});

async function open(answer: RequestListener, options: Partial<GroupOptions>, urls = [working.url]) {
  const server = createServer(answer);
  hanging = server;
  const url = await listen(server);
  group = openServers({ urls: [url, ...urls], onNote: (text) => notes.push(text.replace(url, "URL")), ...options });
}
async function sample(options: SampleOptions = {}): Promise<Sample> {
  for await (const one of sampleFrom(group, { version: 0 }).sample([request], options)) return one;
  throw new Error("no sample");
}
const expected = async () => {
  for await (const one of base.sample([request])) return one;
  throw new Error("no sample");
};

const isHealthy: RequestListener = ({ method, url }, response) => {
  if (method === "GET") response.writeHead(url === "/health" ? 200 : 404).end();
};

test.each<[string, RequestListener, Partial<GroupOptions>, string]>([
  ["never answers at all", () => {}, { watchSeconds: 1 }, "no answer to /health within 1 s"],
  ["answers only /health", isHealthy, { timeoutSeconds: 2 }, "a request made no progress for 2 s"],
])("a server that %s is left out, and its samples are asked elsewhere", async (_, answer, options, why) => {
  await open(answer, options);
  expect(await sample()).toEqual(await expected());
  expect(notes).toEqual([`the inference server at URL does not answer (${why}); its requests go to the others`]);
  expect([group.retries, group.working.length]).toEqual([1, 1]);
  // It is not asked again at once.
  await sample();
  expect([group.retries, notes.length]).toEqual([1, 1]);
});

test("a stream that stops is continued elsewhere; tokens that arrive slowly are progress", async () => {
  const whole = await expected();
  let tokens = 0;
  const slow = await fakeServer("vllm", () => ({
    ...base,
    async *sample(_, { onToken } = {}) {
      for (const [at, token] of whole.tokens.subarray(0, 3).entries()) {
        await new Promise((resolve) => setTimeout(resolve, 1200));
        onToken?.(0, token, whole.logprobs[at]!);
      }
      await new Promise(() => {});
      yield* [];
    },
  }));
  group = openServers({ urls: [slow.url, working.url], timeoutSeconds: 3 });
  const { tokens: sampled } = await sample({ onToken: () => void tokens++ });
  expect([...sampled.subarray(0, 3)]).toEqual([...whole.tokens.subarray(0, 3)]);
  expect([sampled.length, tokens, group.retries]).toEqual([6, 6, 1]);
  slow.close();
});

test.each([
  [1, "asked again", 1],
  [2, "an error", undefined],
])("a connection that breaks before the answer, %d times in a row: %s", async (breaks, _, retries) => {
  let requests = 0;
  await open(
    async (incoming, response) => {
      if (incoming.method === "GET") return isHealthy(incoming, response);
      if (requests++ < breaks) return void incoming.socket.destroy();
      const headers = { "content-type": "application/json" };
      const answer = await fetch(working.url + incoming.url, { method: "POST", headers, body: await text(incoming) });
      response.end(await answer.text());
    },
    {},
    [],
  );
  if (retries === undefined)
    await expect(sample()).rejects.toThrow(/^the connection to the inference server .* failed/);
  else expect([await sample(), group.retries]).toEqual([await expected(), retries]);
  expect([requests, notes]).toEqual([2, []]);
});

test("if no other server works, the request fails with the reason and what to do", async () => {
  await open(isHealthy, { timeoutSeconds: 1 }, []);
  await expect(sample()).rejects.toMatchObject({
    code: "server_unreachable",
    message: expect.stringMatching(
      /^the inference server at http\S+ does not answer: a request made no progress for 1 s$/,
    ),
    hint: expect.stringContaining("local.sampler.timeout"),
  });
});

test("a server that hangs while it is asked for something else is left out too", async () => {
  await open(() => {}, { watchSeconds: 1 });
  expect(await group.each((server) => openAsk(server, "vLLM").ask("/health"))).toEqual([""]);
  expect(group.working).toHaveLength(1);
});
