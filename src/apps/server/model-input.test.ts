/** Images through Tinker's protocol: chunks become tokens and media; what is not an image is refused with the chunk's number. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { lora } from "../../../conformance/tools.ts";
import type { Engine, Policy } from "../../backends/engine.ts";
import { plainParams } from "../../backends/engine-parts.ts";
import type { InputChunk } from "../../backends/tinker/messages.ts";
import { encodeForwardBackwardRequest } from "../../backends/tinker/messages.ts";
import { UserError } from "../../base/errors.ts";
import { hostileFiles } from "../../images/hostile-files.fixture.ts";
import type { Media } from "../../images/images.ts";
import { memoryStore } from "../../images/images.ts";
import { dataUrl, png } from "../../images/pictures.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { crossEntropy, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";
import { type OpenedTinker, openTinker } from "./tinker-engine.fixture.ts";

const picture = png(3, 2);
const base64 = picture.toString("base64");
const store = memoryStore();
const { hash } = store.add(picture);

/** What the engine was given. */
let given: { tokens: number[]; media?: readonly Media[] }[] = [];
const note = (tokens: Int32Array, media?: readonly Media[]) =>
  given.push({ tokens: [...tokens], ...(media ? { media } : {}) });

/** An image has a token for each pixel column. */
function seeing(): Engine {
  const engine = tinyEngine();
  const noting = ({ sampler, learner }: Policy): Policy => ({
    sampler: {
      ...sampler,
      sample(requests, options) {
        for (const { prompt, media } of requests) note(prompt, media);
        return sampler.sample(requests, options);
      },
    },
    learner: {
      ...learner,
      forwardBackward(sequences, loss) {
        for (const { tokens, media } of sequences) note(tokens, media);
        return learner.forwardBackward(sequences, loss);
      },
      forward(sequences, outputs) {
        for (const { tokens, media } of sequences) note(tokens, media);
        return learner.forward(sequences, outputs);
      },
    },
  });
  return {
    ...engine,
    createPolicy: async (spec) => noting(await engine.createPolicy(spec)),
    images: {
      placeholder: { text: "#", id: 4 },
      store,
      tokensOf: async (images) =>
        images.map(({ width }) => {
          if (width === 9) throw new UserError("the image is damaged");
          return new Int32Array(width).fill(4);
        }),
    },
  };
}

const root = temporaryFolder("serve-images");
let client: TestClient;
beforeAll(async () => {
  client = await testClient({ engines: [{ names: ["tabular"], engine: seeing() }] });
});
afterAll(() => client.dispose());
beforeEach(() => {
  given = [];
});

let seq = 0;
let sampler: string;
async function sample(...chunks: unknown[]) {
  if (sampler === undefined) {
    const session_id = (await client.post("create_session", {})).session_id;
    const body = { session_id, sampling_session_seq_id: 0, base_model: "tabular" };
    sampler = String((await client.post("create_sampling_session", body)).sampling_session_id);
  }
  const sampling_params = { max_tokens: 2, seed: 1 };
  return client.result("asample", { sampling_session_id: sampler, seq_id: seq++, prompt: { chunks }, sampling_params });
}

const text = (...tokens: number[]) => ({ type: "encoded_text", tokens });
const image = (more: object = {}) => ({ type: "image", data: base64, format: "png", ...more });
const pointer = (location: unknown, more: object = {}) => ({
  ...{ type: "image_asset_pointer", location, format: "png" },
  ...more,
});
const expected = { tokens: [5, 4, 4, 4, 6], media: [{ at: 1, length: 3, hash }] };

test.each([
  ["an image", image()],
  ["an image with its number of tokens", image({ expected_tokens: 3 })],
  ["a pointer to a data URL", pointer(dataUrl(picture), { expected_tokens: 3 })],
])("a prompt with %s", async (_, chunk) => {
  expect((await sample(text(5), chunk, text(6))).headers.get("content-type")).toContain("protobuf");
  expect(given).toEqual([expected]);
});

test("training data with images, whose targets there are zeros", async () => {
  const { id } = await client.model();
  const { data: [datum] = [], ...rest } = crossEntropy(id, 1, false, [5, 4, 4, 4, 6]);
  const input: InputChunk[] = [
    { kind: "text", tokens: Int32Array.of(5) },
    { kind: "image", data: picture, format: "png", expectedTokens: 3 },
    { kind: "text", tokens: Int32Array.of(6) },
  ];
  const values = Float64Array.of(0, 0, 0, 6, 7);
  const target_tokens = { dtype: "int64" as const, values, shape: [5] };
  const lossInputs = { ...datum!.lossInputs, target_tokens };
  const response = await client.result(
    "forward_backward",
    encodeForwardBackwardRequest({ ...rest, data: [{ input, lossInputs }] }),
  );
  expect(response.headers.get("content-type")).toContain("protobuf");
  expect(given).toEqual([{ ...expected, tokens: [5, 4, 4, 4, 6, 7] }]);
  expect(await client.request("GET", "/metrics").then((answer) => answer.text())).toContain(
    "hone_trained_tokens_total 5",
  );
});

const encoded = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64");

describe("refused:", () => {
  test.each<[string, unknown[], string]>([
    [
      "wrong expected_tokens",
      [text(5), image({ expected_tokens: 4 })],
      "chunk 1: expected_tokens is 4, but this image has 3 tokens",
    ],
    ["another format", [image({ format: "jpeg" })], "chunk 0: format is jpeg, but the image is image/png"],
    ["an unknown format", [image({ format: "gif" })], 'expected one of "png"|"jpeg"'],
    ["no bytes", [{ type: "image", format: "png" }], "chunk 0: the image is empty"],
    ["what is not base64", [image({ data: "%%%" })], "Invalid base64"],
    ["half a token", [image({ expected_tokens: 2.5 })], "expected int"],
    ...hostileFiles.map(([name, bytes, sentence]): [string, unknown[], string] => [
      name,
      [text(5), { type: "image", data: encoded(bytes()) }],
      `chunk 1: ${sentence}`,
    ]),
    ["pixels that cannot be decoded", [text(5), image({ data: encoded(png(9, 9)) })], "chunk 1: the image is damaged"],
    ["65 images", Array.from({ length: 65 }, () => image()), "the input has 65 images; the limit is 64"],
    ["a file of the server", [pointer("/etc/passwd")], "chunk 0: location must be a data URL or an http(s) address"],
    ["a file's URL", [pointer("file:///etc/hostname")], "chunk 0: location must be a data URL or an http(s) address"],
    [
      "an asset of another service",
      [pointer("tinker://session/asset")],
      "chunk 0: location must be a data URL or an http(s) address",
    ],
    ["no location", [pointer(undefined)], "chunk 0: location must be a data URL or an http(s) address"],
    [
      "a data URL of another type",
      [pointer("data:image/svg+xml;base64,AAAA")],
      "chunk 0: the data URL is of type image/svg+xml",
    ],
    [
      "an address without an image",
      [pointer("http://127.0.0.1:1/a.png")],
      "chunk 0: the image's address cannot be used",
    ],
    [
      "wrong expected_tokens of a pointer",
      [pointer(dataUrl(picture), { expected_tokens: 1 })],
      "chunk 0: expected_tokens is 1, but this image has 3 tokens",
    ],
    ["sound", [{ type: "dmel", dmel: "AAAA" }], "chunk 0: the input has a chunk of kind dmel, which is not supported"],
    ["a token that does not exist", [image(), text(99)], "token 99 is not in the vocabulary"],
    ["only an image and no room", [image(), text(-1)], "token -1 is not in the vocabulary"],
  ])("%s", async (_, chunks, sentence) => {
    expect(await (await sample(...chunks)).json()).toMatchObject({ error: expect.stringContaining(sentence) });
    expect(given).toEqual([]);
  });
});

describe("Hone's own client", () => {
  let opened: OpenedTinker;
  beforeAll(async () => {
    opened = await openTinker({ stateFolder: root, inner: seeing() });
  });
  afterAll(() => opened?.close());

  test("sends the chunks that the service answers tokens for", async () => {
    const { images } = opened.engine;
    const image = images!.store.add(picture);
    expect(await images!.tokensOf([image, image])).toEqual([Int32Array.of(4, 4, 4), Int32Array.of(4, 4, 4)]);
    expect(opened.requests.filter((path) => path === "POST image_tokens")).toHaveLength(1);
    const { sampler, learner } = await opened.engine.createPolicy({ adapter: lora() });
    const { media } = expected;
    const params = { ...plainParams, maxTokens: 2, seed: 1 };
    for await (const _ of sampler.sample([{ prompt: Int32Array.from(expected.tokens), media, params }]));
    const sequence = { tokens: Int32Array.from([...expected.tokens, 7]), trained: Uint8Array.of(0, 0, 0, 0, 1), media };
    await learner.forward([sequence], {});
    expect(given).toEqual([expected, { tokens: [...sequence.tokens], media }]);
  });

  test("reports an image that cannot be decoded", async () => {
    const { images } = opened.engine;
    await expect(images!.tokensOf([images!.store.add(png(9, 9))])).rejects.toThrow("the image is damaged");
  });

  test("refuses images where the service does not say which tokens stand for them", async () => {
    const plain = await openTinker({ stateFolder: `${root}-plain`, inner: seeing(), plain: true });
    expect(plain.engine.images).toBe(undefined);
    expect(plain.engine.imagesReason).toBe("this Tinker service does not say which tokens stand for an image");
    await plain.close();
  });
});
