/** The contract with inference servers: requests and answers in the shapes that vLLM and SGLang define. */
import { createServer, type Server } from "node:http";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import { createSampleQueue } from "../../rollout/sample-queue.ts";
import type { Sample, SampleRequest, Sampler } from "../engine.ts";
import { type ServerSamplerOptions, serverSampler } from "./sampler.ts";
import { vllmGenerate } from "./vllm.ts";

let server: Server;
let url: string;
let sampler: Sampler;
let asked: { url: string; authorization: string | undefined; body: Record<string, unknown> }[];
let answer: (body: Record<string, unknown>) => { status?: number; text: string } | undefined;
let closed: number;

beforeEach(async () => {
  asked = [];
  closed = 0;
  server = createServer(async (request, response) => {
    response.on("close", () => {
      if (!response.writableFinished) closed++;
    });
    let text = "";
    for await (const chunk of request) text += chunk;
    if (request.method === "GET") {
      response.writeHead(request.url === "/health" ? 200 : 404).end();
      return;
    }
    const body = JSON.parse(text);
    asked.push({ url: request.url!, authorization: request.headers.authorization, body });
    const given = answer(body);
    if (given === undefined) return;
    response.writeHead(given.status ?? 200);
    // In two pieces, cut within a line.
    response.write(given.text.slice(0, 25));
    setImmediate(() => response.end(given.text.slice(25)));
  });
  url = await listen(server);
});
afterEach(async () => {
  await sampler.close();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

const open = (options: Partial<ServerSamplerOptions> = {}) => {
  sampler = serverSampler({ url: `${url}/v1`, ...options });
};
const request = (more: Partial<SampleRequest> = {}): SampleRequest => ({
  prompt: Int32Array.of(1, 2, 3),
  params: { maxTokens: 8, temperature: 0.7, topP: 0.9, topK: 5, minP: 0, stopIds: [9], stopStrings: ["\n"], seed: 11 },
  ...more,
});
const sample = async (requests: SampleRequest[], options = {}): Promise<Sample[]> => {
  const samples: Sample[] = [];
  for await (const one of sampler.sample(requests, options)) samples.push(one);
  return samples.sort((left, right) => left.request - right.request);
};

const choice = (more: object = {}) => ({
  index: 0,
  text: "Hello",
  logprobs: {
    text_offset: [0, 5],
    token_logprobs: [-0.5, -0.25],
    tokens: ["Hello", ""],
    top_logprobs: [{ Hello: -0.5 }, { "": -0.25 }],
  },
  finish_reason: "stop",
  stop_reason: null,
  prompt_logprobs: null,
  prompt_token_ids: [1, 2, 3],
  token_ids: [42, 9],
  ...more,
});
const completion = (more: object = {}) => ({
  ...{ id: "cmpl-1", object: "text_completion", created: 1, model: "policy" },
  choices: [choice(more)],
  usage: { prompt_tokens: 3, total_tokens: 5, completion_tokens: 2 },
});

describe("vLLM", () => {
  test("receives token ids and returns token ids", async () => {
    open({ model: "policy", apiKey: "secret" });
    answer = () => ({ text: JSON.stringify(completion()) });
    expect(await sample([request()])).toEqual([
      {
        ...{ request: 0, tokens: Int32Array.of(42, 9), logprobs: Float32Array.of(-0.5, -0.25) },
        ...{ stopReason: "stop", policyVersion: 0 },
      },
    ]);
    expect(asked).toEqual([
      {
        url: "/v1/completions",
        authorization: "Bearer secret",
        body: {
          ...{ model: "policy", prompt: [1, 2, 3], max_tokens: 8, temperature: 0.7, top_p: 0.9, top_k: 5, min_p: 0 },
          ...{ stop: ["\n"], stop_token_ids: [9], seed: 11, logprobs: 0, return_token_ids: true },
          // A model's own generation_config must not change what is sampled.
          ...{ repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0, return_weight_versions: true },
        },
      },
    ]);
  });

  test("names alternatives by id", async () => {
    open();
    // The server also reports the sampled token if it is not one of the two.
    const top_logprobs = [{ "token_id:1": -3, "token_id:7": -1, "token_id:42": -0.5 }, { "token_id:9": -0.25 }];
    answer = () => ({ text: JSON.stringify(completion({ logprobs: { ...choice().logprobs, top_logprobs } })) });
    const [one] = await sample([request({ topLogprobs: 2 })]);
    expect(asked[0]!.body).toMatchObject({ logprobs: 2, return_tokens_as_token_ids: true });
    expect(one!.topLogprobs).toEqual([
      { tokens: Int32Array.of(42, 7), logprobs: Float32Array.of(-0.5, -1) },
      { tokens: Int32Array.of(9), logprobs: Float32Array.of(-0.25) },
    ]);
  });

  test("0.24 names alternatives on its route for tokens without token_id", () => {
    const given = (token: number, logprob: number) => ({ token: `token_id:${token}`, logprob, bytes: null });
    const content = [{ ...given(42, -0.5), top_logprobs: [given(42, -0.5), given(7, -1)] }];
    const answered = { choices: [{ token_ids: [42], logprobs: { content }, finish_reason: "length" }] };
    const { topLogprobs } = vllmGenerate.read(answered, request({ topLogprobs: 2 }));
    expect(topLogprobs).toEqual([{ tokens: Int32Array.of(42, 7), logprobs: Float32Array.of(-0.5, -1) }]);
  });

  const chunk = (more: object) =>
    `data: ${JSON.stringify({ id: "cmpl-1", choices: [choice({ finish_reason: null, ...more })] })}\n\n`;

  test("streams", async () => {
    open();
    answer = () => ({
      text: `${chunk({ text: "He", token_ids: [41], logprobs: { token_logprobs: [-0.5] } })}${chunk({ text: "llo", token_ids: [42, 9], logprobs: { token_logprobs: [-0.25, -1] }, finish_reason: "length" })}data: [DONE]\n\n`,
    });
    const tokens: [number, number, number][] = [];
    const samples = await sample([request()], { onToken: (...token: [number, number, number]) => tokens.push(token) });
    expect(asked[0]!.body.stream).toBe(true);
    expect(tokens).toEqual([
      [0, 41, -0.5],
      [0, 42, -0.25],
      [0, 9, -1],
    ]);
    expect(samples).toMatchObject([{ tokens: Int32Array.of(41, 42, 9), stopReason: "length" }]);
  });

  test("a stream that breaks off is an error", async () => {
    open();
    answer = () => ({ text: chunk({ token_ids: [41], logprobs: { token_logprobs: [-0.5] } }) });
    await expect(sample([request()], { onToken: () => {} })).rejects.toThrow(
      "stream ended before the reply was complete",
    );
  });

  test("a server that gives no token ids, or no log-probabilities, is refused in one sentence", async () => {
    open();
    answer = () => ({ text: JSON.stringify(completion({ token_ids: undefined })) });
    await expect(sample([request()])).rejects.toThrow(/does not return token ids: its choices have no token_ids/);
    answer = () => ({ text: JSON.stringify(completion({ logprobs: null })) });
    await expect(sample([request()])).rejects.toThrow(/does not return token ids: its choices have no logprobs/);
    const logprobs = { ...choice().logprobs, token_logprobs: [-0.5, null] };
    answer = () => ({ text: JSON.stringify(completion({ logprobs })) });
    await expect(sample([request()])).rejects.toThrow(/logprobs.token_logprobs holds null/);
  });

  test("returns the experts of tokens, from the first one that is asked for", async () => {
    open();
    answer = () => ({ text: JSON.stringify(completion({ routed_experts: "k05V" })) });
    const [whole] = await sample([request({ routingFrom: 0 })]);
    const [later] = await sample([request({ routingFrom: 2 })]);
    expect([whole!.routing, later!.routing]).toEqual([[{ first: 0, npy: "k05V" }], [{ first: 2, npy: "k05V" }]]);
    expect(asked.map(({ body }) => body.routed_experts_prompt_start)).toEqual([undefined, 2]);
    expect((await sample([request()]))[0]).not.toHaveProperty("routing");
  });

  test("streams experts in its last event", async () => {
    open();
    const first = chunk({ token_ids: [41], logprobs: { token_logprobs: [-0.5] } });
    const last = { token_ids: [9], logprobs: { token_logprobs: [-1] }, finish_reason: "stop", routed_experts: "k05V" };
    answer = () => ({ text: `${first}${chunk(last)}data: [DONE]\n\n` });
    expect(await sample([request({ routingFrom: 0 })], { onToken: () => {} })).toMatchObject([
      { tokens: Int32Array.of(41, 9), routing: [{ first: 0, npy: "k05V" }] },
    ]);
  });

  test("a server without experts is refused with what to do, except where the reply was ended early", async () => {
    open();
    answer = () => ({ text: JSON.stringify(completion({ routed_experts: null })) });
    await expect(sample([request({ routingFrom: 0 })])).rejects.toMatchObject({
      message: "the inference server does not return the experts of its tokens, which router_replay=R3 repeats",
      hint: expect.stringContaining("--enable-return-routed-experts"),
    });
    answer = () => ({ text: JSON.stringify(completion({ finish_reason: "abort" })) });
    const [cut] = await sample([request({ routingFrom: 0 })]);
    expect([cut!.stopReason, cut!.routing]).toEqual(["aborted", undefined]);
  });

  test("its errors are reported in its own words", async () => {
    open();
    answer = () => ({ status: 400, text: '{"error":{"message":"max_tokens is too large"}}' });
    await expect(sample([request()])).rejects.toThrow(/answered 400.*max_tokens is too large/);
  });

  test("reports which weights sampled which tokens, if their labels are numbers", async () => {
    open();
    const spans = (first: string, last: string) => [
      { version: first, start: 0, end: 1 },
      { version: last, start: 1, end: 2 },
    ];
    answer = () => ({ text: JSON.stringify(completion({ weight_versions: spans("6", "7") })) });
    expect(await sample([request()])).toMatchObject([{ policyVersion: 7, tokenVersions: Int32Array.of(6, 7) }]);
    answer = () => ({ text: JSON.stringify(completion({ weight_versions: spans("6", "default") })) });
    const [one] = await sample([request()]);
    expect([one!.policyVersion, one!.tokenVersions]).toEqual([7, undefined]);
  });

  test("a refused call fails alone among calls made at the same time", async () => {
    open();
    answer = ({ prompt }) =>
      (prompt as number[])[0] === 0 ? { status: 400, text: "too long" } : { text: JSON.stringify(completion()) };
    const queue = createSampleQueue(sampler, 0);
    const { signal } = new AbortController();
    const ask = (first: number) =>
      queue.join([first, 0]).sample(request({ prompt: Int32Array.of(first, 2, 3) }), 0, signal);
    const ended = await Promise.allSettled([ask(0), ask(1), ask(2)]);
    expect(ended.map(({ status }) => status)).toEqual(["rejected", "fulfilled", "fulfilled"]);
  });

  test("aborting ends the server's work", async () => {
    open();
    answer = () => undefined;
    const abort = new AbortController();
    const waiting = sample([request({ signal: abort.signal }), request({ signal: abort.signal })]);
    while (asked.length < 2) await new Promise((resolve) => setTimeout(resolve, 2));
    abort.abort();
    expect(await waiting).toMatchObject([{ stopReason: "aborted" }, { stopReason: "aborted" }]);
    while (closed < 2) await new Promise((resolve) => setTimeout(resolve, 2));
  });
});

describe("SGLang", () => {
  const entries = [
    [-0.5, 42, null],
    [-0.25, 43, null],
    [-1, 9, null],
  ];
  const event = (from: number, end: number, more: object = {}) => {
    const info = {
      ...{ id: "1", prompt_tokens: 3, completion_tokens: end, cached_tokens: 0, weight_version: "7" },
      finish_reason: end === 3 ? { type: "stop", matched: 9 } : null,
      output_token_logprobs: entries.slice(from, end),
      output_token_logprobs_length: end,
      output_top_logprobs: entries.slice(from, end).map((entry) => [entry]),
      ...more,
    };
    return JSON.stringify({ text: "Hello", output_ids: [42, 43, 9].slice(from, end), meta_info: info });
  };
  const whole = {
    ...{ request: 0, tokens: Int32Array.of(42, 43, 9), logprobs: Float32Array.of(-0.5, -0.25, -1) },
    ...{ stopReason: "stop", policyVersion: 7, processed: true },
    topLogprobs: [
      { tokens: Int32Array.of(42), logprobs: Float32Array.of(-0.5) },
      { tokens: Int32Array.of(43), logprobs: Float32Array.of(-0.25) },
      { tokens: Int32Array.of(9), logprobs: Float32Array.of(-1) },
    ],
  };

  test("is called at /generate, and reports the version of its weights", async () => {
    open({ kind: "sglang" });
    answer = () => ({ text: event(0, 3) });
    expect(await sample([request({ topLogprobs: 1 })])).toEqual([whole]);
    expect(asked[0]).toMatchObject({
      url: "/generate",
      body: {
        input_ids: [1, 2, 3],
        return_logprob: true,
        top_logprobs_num: 1,
        sampling_params: { max_new_tokens: 8, sampling_seed: 11, repetition_penalty: 1 },
      },
    });
  });

  test.each([
    ["all so far", [event(0, 1), event(0, 2), event(0, 2), event(0, 3)]],
    ["what is new", [event(0, 1), event(1, 2), event(2, 3)]],
    ["all so far, as older ones do", [event(0, 2), event(0, 3)].map((text) => text.replaceAll("_length", "_other"))],
  ])("streams, with %s in each event", async (_, events) => {
    open({ kind: "sglang" });
    answer = () => ({ text: `${events.map((text) => `data: ${text}\n\n`).join("")}data: [DONE]\n\n` });
    const tokens: number[] = [];
    const onToken = (_request: number, token: number) => tokens.push(token);
    expect(await sample([request({ topLogprobs: 1 })], { onToken })).toEqual([whole]);
    expect(asked[0]!.body.stream).toBe(true);
    expect(tokens).toEqual([42, 43, 9]);
  });

  test("a reply that it aborted is an error in its own words", async () => {
    open({ kind: "sglang" });
    const given = { type: "abort", message: "out of memory", status_code: 503, err_type: null };
    answer = () => ({ text: event(0, 1, { finish_reason: given }) });
    await expect(sample([request()])).rejects.toThrow("out of memory");
    answer = () => ({ text: 'data: {"error": {"message": "too long"}}\n\ndata: [DONE]\n\n' });
    await expect(sample([request()], { onToken: () => {} })).rejects.toThrow("too long");
  });
});

describe.each([
  ["vllm", undefined, false],
  ["vllm", "processed", true],
  ["sglang", undefined, true],
  ["sglang", "raw", false],
] as const)("the log-probabilities of %s, started to give %s ones", (kind, logprobs, processed) => {
  const answers = {
    vllm: completion(),
    sglang: { meta_info: { finish_reason: { type: "stop" }, output_token_logprobs: [[-0.5, 42, null]] } },
  };
  test.each([
    [{ temperature: 1, topP: 1, topK: -1 }, false],
    [{ temperature: 0.7, topP: 1, topK: -1 }, true],
    [{ temperature: 1, topP: 0.9, topK: -1 }, true],
    [{ temperature: 1, topP: 1, topK: 5 }, true],
    [{ temperature: 1, topP: 1, topK: -1, minP: 0.1 }, true],
  ])("are marked where sampling changes the distribution: %j", async (changed, changes) => {
    open(logprobs === undefined ? { kind } : { kind, logprobs });
    answer = () => ({ text: JSON.stringify(answers[kind]) });
    const [one] = await sample([request({ params: { ...request().params, ...changed } })]);
    expect(sampler.logprobs).toBe(processed ? "processed" : "raw");
    expect(one!.processed ?? false).toBe(processed && changes);
  });
});

test("refuses published weights, which it cannot load", async () => {
  open();
  await expect(sampler.load({ kind: "engine", version: 1, id: "1" })).rejects.toThrow(/cannot load weights/);
});
