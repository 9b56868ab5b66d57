/** Sampling sessions and requests to sample: each is answered at once with a future, and samples when it is its turn. */
import { setMaxListeners } from "node:events";
import { Hono } from "hono";
import { z } from "zod";
import { EngineDied } from "../../backends/engine-died.ts";
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { jsonChunk } from "../../tinker-protocol/chunks.ts";
import { jsonBody, jsonText, readBody } from "../bodies.ts";
import { HttpError } from "../http-error.ts";
import { readInput } from "../model-input.ts";
import { engineDown, findBaseModel } from "../models/base-models.ts";
import type { FutureResult, FutureStore } from "../queue/futures.ts";
import { readSampleCall, sample } from "../sampling/sample.ts";
import type { Service } from "../service.ts";

/**
 * With `sampleMany`: many sample requests in one, whose answer has their results. The client repeats those without
 * a result; a repeated request starts nothing.
 */
const manySchema = z.looseObject({
  requests: z
    .array(z.looseObject({ sampling_session_id: z.string(), seq_id: z.int().min(0) }))
    .min(1)
    .max(1024),
});

/** With `imageTokens`: which tokens stand for an image. */
const imageSchema = z.strictObject({ base_model: z.string(), image: jsonChunk });

export function samplingRoutes({ context, sessions, samplers, operations }: Service): Hono {
  const { futures, pollMs, metrics, log } = context;

  /** @param seq as digits: these ids can exceed 2^53 */
  function accept(body: Record<string, unknown>, seq: string): { request_id: string; sample_sequence_ids: string[] } {
    const id = String(body.sampling_session_id);
    const { session, base } = samplers.require(body.sampling_session_id);
    if (session.finished) throw new HttpError(410, `the session ${session.id} is finished`);
    sessions.touch(session.id);
    const request = `${id}:${seq}@${context.boot}`;
    const given = body.num_samples;
    const count = typeof given === "number" && given >= 1 && given <= 1024 ? Math.floor(given) : 1;
    const sequences = Array.from({ length: count }, (_, index) => `${request}#${index}`);
    const answer = { request_id: request, sample_sequence_ids: sequences };
    if (futures.has(request)) return answer;
    const leave = base.scheduler.enter(count);
    if (!leave) {
      metrics.add("hone_refused_total", { queue: "sampling" });
      throw new HttpError(429, "too many sequences are waiting to be sampled; try again");
    }
    operations.start(request, id, {
      kind: "sample",
      async work(signal) {
        try {
          const call = await readSampleCall(body, base, signal);
          metrics.add("hone_prompt_tokens_total", {}, call.input.tokens.length);
          const how = call.topPrompt > 0 || call.targets || call.draws ? "scores" : "samples";
          const result = await samplers.use(id, how, (policy) => sample(policy, base, session.id, call, signal));
          metrics.add("hone_sampled_tokens_total", {}, result.sampledTokens);
          context.use("sampling_prefill", session.id, base.name, call.input.tokens.length);
          context.use("sampling_sample", session.id, base.name, result.sampledTokens);
          log.sampled(call.requests.length, result.sampledTokens);
          return { kind: result.kind, body: result.body };
        } catch (error) {
          if (!(error instanceof EngineDied)) throw error;
          if (base.supervisor.lost) throw engineDown(base, error);
          // The weights are on disk: clients send the request again, as after a restart of the server.
          return { kind: "gone", why: "the engine died while it was sampled" };
        } finally {
          leave();
        }
      },
    });
    return answer;
  }

  return new Hono()
    .post("/create_sampling_session", async (c) =>
      c.json({ type: "create_sampling_session", sampling_session_id: samplers.create(await jsonBody(c)) }),
    )
    .post("/join_sampling_session", async (c) => {
      const { sampling_session_id: id } = await jsonBody(c);
      return c.json({ type: "join_sampling_session", client_counter: samplers.join(id) });
    })
    .get("/samplers/:sampler", (c) => {
      const { sampler } = samplers.require(c.req.param("sampler"));
      const { baseModel, modelPath } = sampler;
      return c.json({ sampler_id: c.req.param("sampler"), base_model: baseModel, model_path: modelPath ?? undefined });
    })
    .post("/asample", async (c) => {
      const { text, body } = await jsonText(c);
      if (body.sampling_session_id === undefined || body.sampling_session_id === null) {
        throw new HttpError(400, "sampling_session_id is missing: create a sampling session first");
      }
      const seq = integerField(text, "seq_id");
      if (seq === undefined)
        throw new HttpError(
          400,
          "seq_id must be a whole number of at least 0: it distinguishes a request from its retry",
        );
      return c.json(accept(body, seq));
    })
    .post("/image_tokens", async (c) => {
      const { base_model: name, image } = readBody(imageSchema, await jsonBody(c));
      const { tokens } = await readInput([image], findBaseModel(context.models, name), c.req.raw.signal);
      return c.json({ tokens: [...tokens] });
    })
    .post("/asample_many", async (c) => {
      const { requests } = readBody(manySchema, await jsonBody(c));
      const ids = requests.map((body) => accept(body, String(body.seq_id)).request_id);
      const lines = answerLines(ids, futures, pollMs, c.req.raw.signal);
      return c.body(ReadableStream.from(lines), 200, { "content-type": "application/x-ndjson" });
    });
}

/**
 * A whole number of a JSON text, digit by digit: `JSON.parse` rounds those beyond 2^53. A quote inside a text is
 * escaped there, so the key cannot be part of one.
 */
function integerField(text: string, key: string): string | undefined {
  return new RegExp(`"${key}"\\s*:\\s*(\\d+)(?![\\d.eE])`).exec(text)?.[1];
}

/**
 * Results of several futures in one answer, until all have ended or the poll's time is over. Yields lines of JSON: first
 * the ids, then `index` and result of each future as it ends.
 * @param signal aborted when the client disconnects
 */
async function* answerLines(
  ids: readonly string[],
  futures: FutureStore,
  waitMs: number,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const ready = new AsyncQueue<object>();
  ready.push({ request_ids: ids });
  setMaxListeners(0, signal);
  const collections = ids.map(async (id, index) => {
    const result = await futures.collect(id, waitMs, signal);
    if (result !== "pending") ready.push({ index, ...describe(result) });
  });
  ready.endWith(Promise.all(collections));
  for await (const first of ready) {
    const lines = [first, ...ready.takeAll()].map((line) => `${JSON.stringify(line)}\n`);
    yield Buffer.from(lines.join(""));
  }
}

function describe(result: FutureResult | "unknown"): Record<string, unknown> {
  if (result === "unknown") return { gone: "it was collected long ago" };
  if (result.kind === "gone") return { gone: result.why };
  if (result.kind === "failure") return { ...result.body };
  if (result.kind === "protobuf") return { protobuf: Buffer.from(result.body).toString("base64") };
  return { json: result.body };
}
