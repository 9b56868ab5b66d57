import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import { memoryStore } from "../../images/images.ts";
import { dataUrl, jpeg, png } from "../../images/pictures.fixture.ts";
import { joinRouting } from "../../trajectories/types.ts";
import type { Sample, SampleRequest, Sampler } from "../engine.ts";
import { plainParams } from "../engine-parts.ts";
import { openServers } from "./group.ts";
import type { Recording } from "./recorded.fixture.ts";
import { continuedRequest, joinReplies, sampleFrom } from "./sampler.ts";

describe("reply parts", () => {
  const params = { maxTokens: 9, seed: 1 } as SampleRequest["params"];
  const request: SampleRequest = { prompt: Int32Array.of(5, 6), params, routingFrom: 0 };
  const part = (tokens: number[], experts?: string) => ({
    tokens: Int32Array.from(tokens),
    logprobs: new Float32Array(tokens.length),
    ...{ stopReason: undefined, versions: undefined },
    ...(experts === undefined ? {} : { routing: [{ first: 0, npy: npy(experts) }] }),
  });

  /** Of a model with one layer and one expert for each token. */
  function npy(experts: string): string {
    const header = `{'descr': '|u1', 'fortran_order': False, 'shape': (${experts.length}, 1, 1), }`;
    const size = Buffer.from([header.length, 0]);
    return Buffer.concat([
      Buffer.from("\x93NUMPY\x01\0", "latin1"),
      size,
      Buffer.from(header + experts, "latin1"),
    ]).toString("base64");
  }

  test("the rest of a reply that was ended early is sampled after its tokens, and experts are asked from the same one", () => {
    const rest = continuedRequest(request, [part([7, 8]), part([9])]);
    expect(rest).toMatchObject({ prompt: Int32Array.of(5, 6, 7, 8, 9), params: { maxTokens: 6 }, routingFrom: 0 });
    expect(rest.params.seed).not.toBe(params.seed);
  });

  test.each([
    ["those that sampled", "\x01\x02\x03", [1, 2, 3, 8]],
    ["those of the next part if the server did not tell them", undefined, [9, 9, 9, 8]],
  ])("a reply in parts has the experts: %s", (_, sampled, expected) => {
    const { tokens, routing } = joinReplies([part([7, 8], sampled), part([4], "\x09\x09\x09\x08")]);
    expect(tokens).toEqual(Int32Array.of(7, 8, 4));
    expect([...joinRouting(routing!, 5)!.experts]).toEqual(expected);
  });
});

describe("images", () => {
  const store = memoryStore();
  const red = store.add(png(3, 5)).hash;
  const photo = store.add(jpeg(6, 4)).hash;
  const glass = store.add(png(7, 7)).hash;
  const images = { placeholder: { text: "<image>", id: 9 }, store, transparent: new Set([glass]) };
  /** Three tokens stand for an image, with one between its placeholders. */
  const own = [9, 8, 9];

  const params = { ...plainParams, maxTokens: 4, seed: 1 };
  const at = (place: number, hash = red) => ({ at: place, length: 3, hash });
  const request = (prompt: number[], ...media: ReturnType<typeof at>[]): SampleRequest => ({
    ...{ prompt: Int32Array.from(prompt), params },
    ...(media.length > 0 ? { media } : {}),
  });

  let server: Server;
  let address: string;
  let sampler: Sampler;
  let asked: Record<string, unknown>[];
  let fault: { tokens?: number[]; generates?: boolean };
  /** What a server answered. */
  let recordedAnswer: string | undefined;

  function open(seen: typeof images, kind: "vllm" | "sglang" = "vllm"): void {
    const group = openServers({ urls: [address] });
    sampler = { ...sampleFrom(group, { kind, images: seen, model: "policy", version: 1 }), close: group.close };
  }

  beforeEach(async () => {
    asked = [];
    fault = {};
    recordedAnswer = undefined;
    server = createServer(async (incoming, response) => {
      if (incoming.method === "GET") return void response.writeHead(fault.generates === false ? 404 : 405).end();
      const body = JSON.parse(await text(incoming));
      asked.push(body);
      if (recordedAnswer !== undefined) return void response.end(recordedAnswer);
      let shown = body.content_parts?.length ?? 0;
      const read = (body.token_ids as number[]).flatMap((token) => (token === 9 && shown-- > 0 ? own : [token]));
      const prompt = { prompt_token_ids: fault.tokens ?? read };
      const say = (token: number, reason: string | null) => ({
        choices: [
          { token_ids: [token], logprobs: { content: [{ logprob: -1, token_id: token }] }, finish_reason: reason },
        ],
      });
      if (!body.stream) return void response.end(JSON.stringify({ ...prompt, ...say(4, "stop") }));
      for (const event of [{ ...prompt, ...say(4, null) }, say(5, "stop")])
        response.write(`data: ${JSON.stringify(event)}\n\n`);
      response.end("data: [DONE]\n\n");
    });
    address = await listen(server);
    open(images);
  });
  afterEach(async () => {
    await sampler.close();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });

  async function sample(one: SampleRequest, options = {}): Promise<Sample> {
    for await (const found of sampler.sample([one], options)) return found;
    throw new Error("no sample");
  }

  const url = (bytes: Uint8Array, type?: string) => ({ type: "image_url", url: dataUrl(bytes, type) });

  test.each<[string, SampleRequest, number[], object[] | undefined]>([
    ["one image", request([1, ...own, 2], at(1)), [1, 9, 2], [url(png(3, 5))]],
    [
      "two images of different types",
      request([...own, 1, ...own], at(0), at(4, photo)),
      [9, 1, 9],
      [url(png(3, 5)), url(jpeg(6, 4), "image/jpeg")],
    ],
    [
      "images without text between them",
      request([...own, ...own, 1], at(0), at(3)),
      [9, 9, 1],
      Array(2).fill(url(png(3, 5))),
    ],
    [
      "a placeholder that the model sampled after the last image",
      request([...own, 9, 1], at(0)),
      [9, 9, 1],
      [url(png(3, 5))],
    ],
    ["a transparent image", request([...own], at(0, glass)), [9], [url(png(7, 7))]],
    ["no image", request([1, 9, 2]), [1, 9, 2], undefined],
  ])("%s", async (_, one, tokens, parts) => {
    for (const streamed of [false, true]) {
      const found = await sample(one, streamed ? { onToken: () => {} } : {});
      expect([...found.tokens]).toEqual(streamed ? [4, 5] : [4]);
      expect([asked.at(-1)!.token_ids, asked.at(-1)!.content_parts]).toEqual([tokens, parts]);
    }
  });

  test.each<[string, SampleRequest, typeof fault, string]>([
    [
      "fewer tokens than the trainer's",
      request([1, ...own], at(1)),
      { tokens: [1, 9, 8] },
      "has 3 tokens for a prompt with images, the trainer 4. They differ from token 3 on",
    ],
    [
      "other tokens",
      request([1, ...own], at(1)),
      { tokens: [1, 9, 9, 9] },
      "They differ from token 2 on, because the image processors differ",
    ],
    [
      "a server without the route for tokens",
      request([...own], at(0)),
      { generates: false },
      "does not accept images through /v1/completions",
    ],
    [
      "a placeholder that the model sampled before an image",
      request([9, ...own], at(1)),
      {},
      "the model sampled <image> before an image",
    ],
  ])("%s is refused", async (_, one, wrong, sentence) => {
    fault = wrong;
    await expect(sample(one)).rejects.toThrow(sentence);
    if (fault.generates !== false) await expect(sample(one, { onToken: () => {} })).rejects.toThrow(sentence);
  });

  const sglangAnswer = (prompt?: number[]) =>
    JSON.stringify({
      prompt_token_ids: prompt,
      meta_info: { output_token_logprobs: [[-1, 4, null]], finish_reason: { type: "stop" } },
    });

  test.each<[string, SampleRequest, string, string]>([
    [
      "a transparent image",
      request([...own], at(0, glass)),
      sglangAnswer([...own]),
      `the image ${glass} has transparent pixels`,
    ],
    [
      "a placeholder that the model sampled after the last image",
      request([...own, 9, 1], at(0)),
      sglangAnswer(),
      "the model sampled <image> after the last image",
    ],
    [
      "an image of one token",
      request([1, 9, 2], { at: 1, length: 1, hash: red }),
      sglangAnswer([1, 9, 2]),
      `the image ${red} has only one token`,
    ],
    [
      "an answer without the prompt",
      request([1, ...own], at(1)),
      sglangAnswer(),
      "answer to a prompt with images has no prompt_token_ids",
    ],
    [
      "a text that was encoded again",
      request([1, 2, ...own], at(2)),
      sglangAnswer([5, ...own]),
      "has 4 tokens for a prompt with images, the trainer 5. They differ from token 0 on",
    ],
  ])("SGLang: %s is refused", async (_, one, answer, sentence) => {
    await sampler.close();
    open(images, "sglang");
    recordedAnswer = answer;
    await expect(sample(one)).rejects.toThrow(sentence);
    recordedAnswer = `data: ${answer}\n\ndata: [DONE]\n\n`;
    await expect(sample(one, { onToken: () => {} })).rejects.toThrow(sentence);
  });

  const recorded = (["vllm", "sglang"] as const).flatMap((kind) => {
    const text = readFileSync(new URL(`./fixtures/${kind}-images.json`, import.meta.url), "utf8");
    return (JSON.parse(text) as Recording).recorded.map((one) => ({ ...one, kind }));
  });

  test.each(recorded)("$kind, $name: samples with the log-probabilities of transformers", async (one) => {
    await sampler.close();
    open({ ...images, placeholder: { text: "<image>", id: 3 } }, one.kind);
    const urls = (one.body.image_data ??
      (one.body.content_parts as { url: string }[]).map(({ url }) => url)) as string[];
    for (const url of urls) store.add(Buffer.from(url.split(",")[1]!, "base64"));
    recordedAnswer = one.answer;
    const found = await sample(
      { ...one.asked, prompt: Int32Array.from(one.asked.prompt) },
      one.stream ? { onToken: () => {} } : {},
    );
    const { request_id: _, ...body } = asked[0]!;
    expect(body).toEqual(one.body);
    expect([[...found.tokens], found.stopReason]).toEqual([one.tokens, one.stopReason]);
    for (const [index, logprob] of one.logprobs!.entries()) expect(found.logprobs[index]).toBeCloseTo(logprob, 3);
    const isImage = (place: number) => one.asked.media!.some(({ at, length }) => place >= at && place < at + length);
    for (const [index, logprob] of (one.promptLogprobs ?? []).entries()) {
      const own = found.promptLogprobs![index + 1];
      if (one.kind === "sglang" && isImage(index + 1)) expect(own).toBeNaN();
      else expect(own).toBeCloseTo(logprob, 3);
    }
  });
});
