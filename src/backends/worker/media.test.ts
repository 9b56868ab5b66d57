/** Images on the wire: once by hash, again if the worker has forgotten them. */
import { PassThrough } from "node:stream";
import { expect, test, vi } from "vitest";
import { memoryStore } from "../../images/images.ts";
import { png } from "../../images/pictures.fixture.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { SampleRequest } from "../engine.ts";
import { plainParams } from "../engine-parts.ts";
import { createPolicy } from "../local/engine.ts";
import { connect, encodeFrame, type Frame, frameParser, type OutgoingArrays } from "./connection.ts";
import { workerImages } from "./media.ts";

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}

type Answer = { header: object; arrays?: OutgoingArrays };

/** A worker of the test's own, which answers each message at once. */
function openFake(answer: (frame: Frame) => Answer | Answer[]) {
  const [input, output] = [new PassThrough(), new PassThrough()];
  const frames: Frame[] = [];
  const parse = frameParser((frame) => {
    frames.push(frame);
    for (const { header, arrays } of [answer(frame)].flat()) {
      output.write(encodeFrame({ id: frame.header.id, ...header }, arrays));
    }
  });
  input.on("data", parse);
  const worker = { pid: 1, input, output, ended: new Promise<never>(() => {}), stop: async () => {}, kill: () => {} };
  return { connection: connect(worker), frames, ops: () => frames.map(({ header }) => header.op) };
}

const store = memoryStore();
const [red, blue] = [store.add(png(2, 2, [255, 0, 0])), store.add(png(2, 2, [0, 0, 255]))];
const placeholder = { text: "<image>", id: 5 };
/** Three tokens for each image. */
const tokens = ({ header }: Frame): Answer => {
  const hashes = header.hashes as string[];
  return {
    header: { ok: true, media: hashes.map(() => ({ width: 2, height: 2 })) },
    arrays: {
      tokens: Int32Array.from(hashes.flatMap((_, index) => [1, 5, 2 + index])),
      offsets: Int32Array.from([0, ...hashes.map((_, index) => 3 * (index + 1))]),
    },
  };
};

test("each image is sent once, with its bytes", async () => {
  const { connection, frames, ops } = openFake(tokens);
  const { tokensOf } = workerImages(connection, store, placeholder);
  expect((await tokensOf([red])).map((own) => [...own])).toEqual([[1, 5, 2]]);
  expect((await tokensOf([red, blue])).map((own) => [...own])).toEqual([
    [1, 5, 2],
    [1, 5, 2],
  ]);
  await tokensOf([blue, red, blue]);
  expect(ops()).toEqual(["put_media", "put_media"]);
  expect(frames.map(({ header }) => header.hashes)).toEqual([[red.hash], [blue.hash]]);
  expect(Buffer.from(frames[1]!.arrays.bytes!.data as Uint8Array)).toEqual(Buffer.from(await store.read(blue.hash)));
});

test("an image that the worker cannot decode is a mistake of the request", async () => {
  const error = "it cannot be decoded: broken data stream";
  const { connection } = openFake(() => ({ header: { ok: true, media: [{}, { error }] } }));
  await expect(workerImages(connection, store, placeholder).tokensOf([red, blue])).rejects.toMatchObject({
    message: `the image ${blue.hash.slice(0, 12)} cannot be used: ${error}`,
    exitCode: 2,
  });
});

test("a caller that gives up ends the decoding of its images", async () => {
  const { connection, frames } = openFake(({ header }) => {
    if (header.op === "abort")
      return [{ header: { ok: true } }, { header: { id: header.media, ok: true, cancelled: true } }];
    return [];
  });
  const { tokensOf } = workerImages(connection, store, placeholder);
  const stop = new AbortController();
  const asked = tokensOf([red], stop.signal);
  await vi.waitFor(() => expect(frames).toHaveLength(1));
  stop.abort(new Error("the client has left"));
  await expect(asked).rejects.toThrow("the client has left");
  expect(frames.map(({ header }) => [header.op, header.media])).toEqual([
    ["put_media", undefined],
    ["abort", frames[0]!.header.id],
  ]);
  await expect(tokensOf([red], stop.signal)).rejects.toThrow("the client has left");
});

/** Forgets all images once, before it answers. */
function openForgetful() {
  let forgets = 1;
  const noSamples: Answer[] = [
    {
      header: { event: "sample", request: 0, stop_reason: "stop", policy_version: 0 },
      arrays: { tokens: Int32Array.of(4), logprobs: Float32Array.of(-1) },
    },
    { header: { ok: true } },
  ];
  return openFake((frame) => {
    const { op, media } = frame.header;
    if (op === "put_media") return tokens(frame);
    if (op === "create_policy") return { header: { ok: true, policy: 0 } };
    if (media && forgets-- > 0) return { header: { error: { kind: "media", message: "forgotten", hashes: media } } };
    if (op === "sample") return noSamples;
    return { header: { ok: true }, arrays: { logprobs: Float32Array.of(-1) } };
  });
}

const media = [{ at: 1, length: 3, hash: red.hash }];
const sequence: Sequence = { tokens: Int32Array.of(7, 1, 5, 2, 4), trained: Uint8Array.of(0, 0, 0, 1), media };
const request: SampleRequest = {
  prompt: sequence.tokens,
  media,
  params: plainParams,
};

test("forgotten images are sent again, and the request is repeated once", async () => {
  const forward = openForgetful();
  const { learner } = await createPolicy(forward.connection, store, { adapter: { kind: "none" } });
  expect((await learner.forward([{ ...sequence, media: [] }, sequence].slice(1), {})).logprobs).toEqual(
    Float32Array.of(-1),
  );
  expect(forward.ops()).toEqual(["create_policy", "forward", "put_media", "forward"]);

  const sampling = openForgetful();
  const { sampler } = await createPolicy(sampling.connection, store, { adapter: { kind: "none" } });
  const samples = await collect(sampler.sample([request]));
  expect(samples.map((each) => [...each.tokens])).toEqual([[4]]);
  expect(sampling.ops()).toEqual(["create_policy", "sample", "put_media", "sample"]);
});

test("places of images travel by sequence; messages without images are unchanged", async () => {
  const { connection, frames } = openForgetful();
  const { sampler } = await createPolicy(connection, store, { adapter: { kind: "none" } });
  const { media: _, ...textOnly } = request;
  await collect(sampler.sample([textOnly]));
  expect([Object.keys(frames[1]!.header).sort(), Object.keys(frames[1]!.arrays)]).toEqual([
    ["id", "op", "policy", "requests", "stream"],
    ["tokens", "offsets"],
  ]);
  await collect(
    sampler.sample([textOnly, request, { ...request, media: [...media, { at: 9, length: 2, hash: blue.hash }] }]),
  );
  const sent = frames.at(-1)!;
  expect(sent.header.media).toEqual([red.hash, red.hash, blue.hash]);
  expect(sent.arrays.media_ranges).toEqual({ data: Int32Array.of(1, 1, 3, 2, 1, 3, 2, 9, 2), shape: [3, 3] });
});

test("an image that is nowhere any more ends the request", async () => {
  const { connection } = openForgetful();
  const { learner } = await createPolicy(connection, memoryStore(), { adapter: { kind: "none" } });
  await expect(learner.forward([sequence], {})).rejects.toThrow("is no longer in memory");
});
