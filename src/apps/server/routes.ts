/**
 * The calls that a training loop makes, in the order of a run: handshake, training, sampling, results, checkpoints, downloads. Other
 * calls are in features.ts.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { setMaxListeners } from "node:events";
import { createReadStream, existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { type Context, Hono } from "hono";
import { z } from "zod";
import { EngineDied } from "../../backends/engine-parts.ts";
import { formatTinkerPath, honeCapabilities, wholeAtLeast } from "../../backends/tinker/handshake.ts";
import { decodeForwardBackwardRequest, jsonChunk } from "../../backends/tinker/messages.ts";
import { AsyncQueue } from "../../base/concurrency.ts";
import { type BaseModel, engineDown, findBaseModel } from "./base-models.ts";
import type { FutureResult, FutureStore } from "./context.ts";
import { clientName, clientNote, clipped, HttpError, jsonBody, jsonText, protobufBody, readBody } from "./http.ts";
import type { LiveModel } from "./live-models.ts";
import { readInput } from "./model-input.ts";
import { readSampleCall, sample } from "./sampling.ts";
import { completionTarget, createModel, createModelFrom, type Service } from "./service.ts";
import {
  checkpointAddress,
  checkpointAt,
  loadWeights,
  requireCheckpoint,
  saveExternal,
  saveForSampler,
  saveWeights,
} from "./sessions.ts";
import { dropGradient, forwardBackward, optimStep } from "./training.ts";

// How a client begins: the server's capabilities, sessions, heartbeats.

const finishSchema = z.looseObject({
  reason: z.looseObject({ type: clientName }).nullish(),
  detail: clientNote.nullish(),
});

/** What other clients ignore. */
function describeModel({ model, capabilities, images, imagesReason }: BaseModel["engine"]) {
  const { directory, architecture, parameters, vocabularySize, eosTokenIds, dtype, device, attention } = model;
  return {
    ...{ directory, architecture, parameters, vocabularySize, eosTokenIds, dtype, device, attention },
    loraTargets: capabilities.loraTargets,
    imagePlaceholder: images?.placeholder,
    imagesReason,
  };
}

export function handshakeRoutes({ sessions, context }: Service): Hono {
  return new Hono()
    .get("/healthz", (c) => {
      const down = context.models.filter(({ supervisor }) => supervisor.lost).map(({ name }) => name);
      if (down.length === 0) return c.json({ status: "ok" });
      const detail = `the engine of ${down.join(", ")} is down and is not started again: restart the server`;
      return c.json({ status: "down", detail }, 503);
    })
    .post("/client/config", (c) =>
      c.json({
        pjwt_auth_enabled: false,
        parallel_fwdbwd_chunks: true,
        proto_compress_fwdbwd: false,
        custom_loss_server_side: false,
        sample_join_sampling_session: true,
      }),
    )
    .post("/client/dynamic_config", (c) => c.json({ refresh_interval_sec: 300, sample_cancel_enabled: true }))
    .post("/create_session", async (c) => {
      const { id } = sessions.create(await jsonBody(c));
      return c.json({ type: "create_session", session_id: id });
    })
    .post("/session_heartbeat", async (c) => {
      sessions.touch((await jsonBody(c)).session_id);
      return c.json({ type: "session_heartbeat" });
    })
    .post("/sessions/:session/finish", async (c) => {
      const { reason, detail } = readBody(finishSchema, await jsonBody(c));
      await sessions.finish(c.req.param("session"), reason?.type ?? "unknown", detail ?? null);
      return c.body(null, 204);
    })
    .post("/telemetry", (c) => c.json({ status: "accepted" }))
    .get("/get_server_capabilities", (c) =>
      c.json({
        supported_models: context.models.map(({ name, engine }) => ({
          model_name: name,
          max_context_length: engine.model.maxLength,
          trainable: engine.capabilities.adapters.includes("lora"),
          sampleable: true,
          hone: describeModel(engine),
        })),
        hone: honeCapabilities,
      }),
    );
}

// Models and their training: every long operation is answered with the id of its future.

const numbered = z.looseObject({ seq_id: wholeAtLeast(0).nullish() });

export function trainingRoutes(service: Service): Hono {
  const { context, sessions, samplers, operations } = service;
  const { metrics } = context;

  const routes = new Hono()
    .post("/create_model", async (c) => c.json(createModel(service, await jsonBody(c))))
    .post("/get_info", async (c) => {
      const { id, record, base } = sessions.requireModel((await jsonBody(c)).model_id);
      const { architecture: arch, directory } = base.engine.model;
      // A client on this machine loads the tokenizer from the model's own folder.
      const tokenizer_id = directory === "" ? undefined : directory;
      return c.json({
        type: "get_info",
        model_id: id,
        model_name: record.baseModel,
        is_lora: true,
        lora_rank: record.adapter.rank,
        optimizer_config: { type: "adamw" },
        model_data: { arch, model_name: record.baseModel, tokenizer_id },
      });
    })
    // The SDK had this before 0.25.
    .post("/forward", (c) => refuseOldSdk(c))
    .post("/forward_backward", async (c) => {
      if (c.req.header("content-type")?.startsWith("application/json")) refuseOldSdk(c);
      const encoding = c.req.header("content-encoding") ?? "identity";
      if (encoding !== "identity")
        throw new HttpError(415, `Content-Encoding ${encoding} is not supported: see client/config`);
      const bytes = await protobufBody(c);
      const request = decode(bytes);
      const model = sessions.requireModel(request.modelId);
      const operation = {
        kind: request.forwardOnly ? "forward" : "forward_backward",
        details: ` of ${request.datums} datums`,
        work: async () =>
          forwardBackward(model, request.content(), (tokens) => {
            metrics.add("hone_trained_tokens_total", {}, tokens);
            context.use("training", model.session.id, model.base.name, tokens);
          }),
      };
      return c.json(operations.accept(model, request.seqId > 0 ? request.seqId : null, bytes.byteLength, operation));
    });

  function operation(
    kind: string,
    run: (model: LiveModel, body: Record<string, unknown>) => Promise<FutureResult>,
  ): void {
    routes.post(`/${kind}`, async (c) => {
      const body = await jsonBody(c);
      if (kind === "load_weights" && (body.session_id ?? null) !== null) return c.json(createModelFrom(service, body));
      const model = sessions.requireModel(body.model_id);
      const { seq_id: seq = null } = readBody(numbered, body);
      return c.json(operations.accept(model, seq, 0, { kind, work: () => run(model, body) }));
    });
  }
  operation("optim_step", optimStep);
  operation("zero_grad", dropGradient);
  operation("save_weights", (model, body) => saveWeights(context, model, body));
  operation("save_weights_external", (model, body) => saveExternal(context, model, body));
  operation("save_weights_for_sampler", (model, body) =>
    saveForSampler(context, model, body, (number, weights) =>
      samplers.add(model.session, { number, baseModel: model.record.baseModel, weights }),
    ),
  );
  operation("load_weights", (model, body) => loadWeights(context, model, body));
  return routes;
}

function decode(bytes: Uint8Array): ReturnType<typeof decodeForwardBackwardRequest> {
  try {
    return decodeForwardBackwardRequest(bytes);
  } catch (cause) {
    throw new HttpError(400, `the body is not a ForwardBackwardRequest: ${cause}`, { cause });
  }
}

/** The first tested SDK version that sends training data as protobuf. */
const firstSdk = "0.25.0";

function refuseOldSdk(c: Context): never {
  const version = /AsyncTinker\/Python (\S+)/.exec(c.req.header("user-agent") ?? "")?.[1];
  throw new HttpError(
    400,
    `the tinker SDK${version === undefined ? "" : ` ${version}`} of this client is too old: it sends training data as JSON. This server works with ${firstSdk} and later, and is tested with 0.38.0: pip install --upgrade tinker`,
  );
}

// Sampling sessions and requests to sample: each is answered at once with a future, and samples when it is its turn.

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

// Collecting results: polls that are held open for a while.

const manyFuturesSchema = z.looseObject({
  target: z.looseObject({ sampling_session_id: z.string(), cloned_sampler_id: z.int().min(0).default(0) }),
  prev_cursor: z.int().min(0).default(0),
  timeout: z.number().min(0).nullish(),
});

/** How often an open poll checks whether its operation is delayed. */
const lookMs = 5_000;

export function futureRoutes({ context, sessions, completions, samplers }: Service): Hono {
  const { futures, pollMs } = context;

  /** Why an operation is waiting, as text for its client; null if nothing unusual delays it. */
  function pauseOf(request: string): string | null {
    const [, id = "", seq] = /^(.+):(\d+)@/.exec(request) ?? [];
    const gap = sessions.liveModel(id)?.sequencer.gap;
    if (!gap || Number(seq) <= gap.missing) return null;
    const seconds = Math.max(0, Math.ceil((gap.until - performance.now()) / 1000));
    return `request ${gap.missing} of ${id} has not arrived: its client failed before sending it, or it is still on its way. The server waits up to ${seconds} s more (hone serve --gap-seconds), then skips it`;
  }

  /** The client knows that the operation was lost with an earlier start of the server, and does not send it again. */
  function forget(request: string): void {
    const [, id = "", seq] = /^(.+:train:\d+):(\d+)@/.exec(request) ?? [];
    if (!request.endsWith(`@${context.boot}`)) sessions.findModel(id)?.sequencer.lose(Number(seq));
  }

  /** Ends early if the operation is delayed, so that its client sees why. */
  async function poll(id: string, signal: AbortSignal): Promise<FutureResult | "unknown" | { pause: string | null }> {
    for (let left = pollMs; ; left -= lookMs) {
      const result = await futures.collect(id, Math.min(left, lookMs), signal);
      if (result !== "pending") return result;
      const pause = pauseOf(id);
      if (pause !== null || left <= lookMs || signal.aborted) return { pause };
    }
  }

  return new Hono()
    .post("/retrieve_future", async (c) => {
      const { request_id: id } = await jsonBody(c);
      const result = await poll(String(id), c.req.raw.signal);
      if (typeof result === "object" && "pause" in result) {
        const body = { type: "try_again", request_id: String(id) };
        if (result.pause === null) return c.json({ ...body, queue_state: "active" }, 408);
        // With 200 the official client logs a line; with 408 it is silent.
        return c.json({ ...body, queue_state: "paused_capacity", queue_state_reason: result.pause });
      }
      if (result === "unknown" || result.kind === "gone") {
        // After a 410 a sampling client sends the request again, and a training client reports it.
        if (result === "unknown") forget(String(id));
        const ofThisBoot = String(id).endsWith(`@${context.boot}`);
        const forgotten = ofThisBoot ? "it was collected long ago" : "the server was restarted since";
        const why = result === "unknown" ? forgotten : result.why;
        return c.json({ detail: `the result of ${clipped(String(id))} is gone: ${why}` }, 410);
      }
      if (result.kind !== "protobuf") return c.json(result.body);
      return c.body(Uint8Array.from(result.body).buffer, 200, { "content-type": "application/x-protobuf" });
    })
    .post("/retrieve_futures", async (c) => {
      const { target, prev_cursor, timeout } = readBody(manyFuturesSchema, await jsonBody(c));
      samplers.require(target.sampling_session_id);
      const waitMs = timeout === null || timeout === undefined ? pollMs : Math.min(pollMs, timeout * 1000);
      const name = completionTarget(target.sampling_session_id, BigInt(target.cloned_sampler_id));
      return c.json(await completions.read(name, prev_cursor, waitMs, c.req.raw.signal));
    })
    .post("/cancel_future", async (c) => {
      futures.cancel(String((await jsonBody(c)).request_id));
      return c.json({});
    });
}

// Checkpoints: information, deletion, downloads of exports.

export function checkpointRoutes({ context }: Service): Hono {
  const { store, log } = context;
  return new Hono()
    .post("/weights_info", async (c) => {
      const { tinker_path } = readBody(z.looseObject({ tinker_path: z.string() }), await jsonBody(c));
      const { baseModel, adapter } = requireCheckpoint(context, tinker_path);
      return c.json({
        base_model: baseModel,
        is_lora: true,
        lora_rank: adapter.rank,
        // With `adapterAlpha`.
        lora_alpha: adapter.alpha,
        train_unembed: adapter.targets.includes("unembed"),
        train_mlp: adapter.targets.includes("mlp"),
        train_attn: adapter.targets.includes("attn"),
        optimizer_config: { type: "adamw" },
      });
    })
    .delete(checkpointAddress, (c) => {
      const checkpoint = checkpointAt(context, c.req.param());
      store.deleteCheckpoint(formatTinkerPath(checkpoint));
      log.info(checkpoint.run, `deleted ${checkpoint.kind}/${checkpoint.name}`);
      return c.body(null, 204);
    })
    .get(`${checkpointAddress}/external_weights_urls`, (c) => {
      const checkpoint = checkpointAt(context, c.req.param());
      if (checkpoint.kind !== "external_weights") throw new HttpError(400, "only external weights can be downloaded");
      const files = filesOf(store.folderOf(checkpoint.data));
      return c.json(signedUrls(c, "GET", `/downloads/${checkpoint.data}`, files, context.now()));
    });
}

const filesOf = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((file) => statSync(join(folder, file)).isFile());

/** Files of exports, by signed URL. */
export function downloadRoutes({ context }: Service): Hono {
  return new Hono().get("/downloads/:data", (c) => {
    const file = requireSigned(c, context.now());
    const path = join(context.store.folderOf(c.req.param("data")), file);
    if (!existsSync(path)) throw new HttpError(404, "the file no longer exists");
    const body = Readable.toWeb(createReadStream(path)) as ReadableStream;
    return c.body(body, 200, {
      "content-type": "application/octet-stream",
      "content-length": String(statSync(path).size),
    });
  });
}

// Addresses that work without the key for a while, until the server ends.

const validMs = 3_600_000;
const secret = randomBytes(32);

const sign = (method: string, path: string, file: string, expires: number): string =>
  createHmac("sha256", secret).update([method, path, file, expires].join("\n")).digest("hex");

/** Addresses for the files under `path` of this server, and when they expire. */
export function signedUrls(c: Context, method: "GET" | "PUT", path: string, files: readonly string[], now: Date) {
  const expires = now.getTime() + validMs;
  const { origin } = new URL(c.req.url);
  const urls = files.map((file) => {
    const query = new URLSearchParams({
      file,
      expires: String(expires),
      signature: sign(method, path, file, expires),
    });
    return [file, `${origin}${path}?${query}`] as const;
  });
  return { urls: Object.fromEntries(urls), expires: new Date(expires).toISOString() };
}

/** The file that a signed address names. @throws HttpError 403 */
export function requireSigned(c: Context, now: Date): string {
  const { file = "", expires = "", signature = "" } = c.req.query();
  const expected = Buffer.from(sign(c.req.method, c.req.path, file, Number(expires)));
  const given = Buffer.from(signature);
  const valid = given.length === expected.length && timingSafeEqual(given, expected);
  if (!valid || Number(expires) < now.getTime()) throw new HttpError(403, "this address is invalid or has expired");
  return file;
}
