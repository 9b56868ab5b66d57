/** Samples from a Tinker service. */
import { AsyncQueue, Semaphore, unlessAborted } from "../../base/concurrency.ts";
import { RunError, UserError } from "../../base/errors.ts";
import type { LikelyTokens, Sample, SampleOptions, SampleRequest, Sampler, SamplingParams } from "../engine.ts";
import { changesDistribution, idOf } from "../engine-parts.ts";
import { type Connection, futureFailure, LostResultError, type TinkerSession } from "./connection.ts";
import type { ServiceCapabilities } from "./handshake.ts";
import { chunkToJson, decodeSampleResponse, type InputChunk, type TopLogprobs } from "./messages.ts";
import { readChunks } from "./training.ts";

// Sends samples that are requested at the same time as one request to a service with `sampleMany`, which streams the
// results. Tinker's protocol takes two requests for each.

interface Pending {
  body: Record<string, unknown>;
  /** The service's id, once known. */
  id?: string;
  resolve(result: Uint8Array): void;
  reject(error: unknown): void;
}

/** Requests that are sent as one, and about how many bytes of images; the service takes 256 MiB. */
const batchLimits = { requests: 256, imageBytes: 64 * 2 ** 20 };

/** Returns a function that requests a sample with `bytes` of images. Calls of the same microtask turn are sent together. */
export function sampleMany(
  connection: Connection,
): (body: Record<string, unknown>, aborted: AbortSignal, bytes?: number) => Promise<Uint8Array> {
  let batch: ReturnType<typeof createBatch> | undefined;
  let total = 0;
  return (body, aborted, bytes = 0) => {
    if (!batch || batch.open.size >= batchLimits.requests || total + bytes > batchLimits.imageBytes) {
      const begun = createBatch(connection);
      batch = begun;
      total = 0;
      queueMicrotask(() => {
        if (batch === begun) batch = undefined;
        void begun.send();
      });
    }
    total += bytes;
    return batch.add(body, aborted);
  };
}

function createBatch(connection: Connection) {
  /** The samples that have no answer so far. */
  const open = new Set<Pending>();
  const abandoned = new AbortController();

  function cancel({ id }: Pending): void {
    if (id !== undefined) connection.post("cancel_future", { request_id: id }).catch(() => {});
  }

  function settle(sample: Pending, answer: Record<string, unknown>): void {
    const { protobuf, gone } = answer;
    if (!open.delete(sample)) return;
    if (typeof protobuf === "string") sample.resolve(Buffer.from(protobuf, "base64"));
    else if (typeof gone === "string") sample.reject(new LostResultError(sample.id ?? "a sample", gone));
    else sample.reject(futureFailure(answer));
  }

  /** Unanswered requests are sent again; the service recognizes them by their numbers. */
  async function attempt(): Promise<"done" | "again"> {
    const asked = [...open];
    const requests = asked.map(({ body }) => body);
    for await (const line of connection.lines("asample_many", { requests }, abandoned.signal)) {
      const { index, request_ids: ids } = line;
      const answered = typeof index === "number" ? asked[index] : undefined;
      if (answered) settle(answered, line);
      if (!Array.isArray(ids)) continue;
      for (const [place, sample] of asked.entries()) {
        sample.id = String(ids[place]);
        if (!open.has(sample)) cancel(sample);
      }
    }
    return open.size === 0 ? "done" : "again";
  }

  return {
    open,
    async add(body: Record<string, unknown>, aborted: AbortSignal): Promise<Uint8Array> {
      let giveUp = () => {};
      try {
        return await new Promise<Uint8Array>((resolve, reject) => {
          const sample: Pending = { body, resolve, reject };
          giveUp = () => {
            if (!open.delete(sample)) return;
            cancel(sample);
            reject(aborted.reason);
            if (open.size === 0) abandoned.abort(aborted.reason);
          };
          open.add(sample);
          aborted.addEventListener("abort", giveUp, { once: true });
        });
      } finally {
        aborted.removeEventListener("abort", giveUp);
      }
    },
    /** Settles all that were added. */
    async send(): Promise<void> {
      try {
        if (open.size > 0) await connection.persist("sample", attempt, abandoned.signal);
      } catch (error) {
        for (const sample of open) sample.reject(error);
      }
    },
  };
}

// A Tinker service as a sampler: of the base model until published weights are loaded.

export interface TinkerModel {
  /** The model's name at the service. */
  name: string;
  eosTokenIds: readonly number[];
}

export function createTinkerSampler(session: TinkerSession, model: TinkerModel): Sampler {
  let version = 0;
  let loaded: Promise<SamplingSession> | undefined;

  return {
    get version() {
      return version;
    },
    logprobs: session.capabilities.exactLogprobs ? "raw" : "processed",
    async *sample(requests, options = {}) {
      loaded ??= openBase(session, model.name);
      yield* sample(session, await loaded, requests, model.eosTokenIds, options);
    },
    async load(weights) {
      // Requests are counted per sampling session, so the count continues when the same one is loaded again.
      const id = idOf(weights);
      if ((await loaded)?.id === id) return;
      version = weights.version;
      loaded = Promise.resolve(samplingSession(id, version));
    },
    async close() {},
  };
}

async function openBase(session: TinkerSession, model: string): Promise<SamplingSession> {
  const answer = await session.connection.post("create_sampling_session", {
    type: "create_sampling_session",
    session_id: session.id,
    sampling_session_seq_id: session.nextSampler(),
    base_model: model,
  });
  return samplingSession(String(answer.sampling_session_id), 0);
}

type SamplingSession = ReturnType<typeof samplingSession>;

/** @param version of the weights that it samples from */
function samplingSession(id: string, version: number) {
  let requests = 0;
  return { id, version, next: () => requests++ };
}

/** Retries of a sample whose result was lost. */
const maxLosses = 3;

/** Concurrent requests; the official client's limit. */
const maxConcurrent = 400;

/** @throws UserError for parameters that the service does not have */
async function* sample(
  session: TinkerSession,
  sampler: SamplingSession,
  requests: readonly SampleRequest[],
  eosTokenIds: readonly number[],
  { signal }: SampleOptions,
): AsyncGenerator<Sample, void, undefined> {
  const inputs = requests.map(({ prompt, media }) => ({ tokens: prompt, media }));
  const chunks = await readChunks(inputs, session.media);
  const bodies = requests.map((request, index) => encode(chunks[index]!, request, session, sampler, eosTokenIds));
  const ready = new AsyncQueue<Sample>();
  const { capabilities } = session;
  const places = new Semaphore(capabilities.sampleMany ? Number.POSITIVE_INFINITY : maxConcurrent);
  const stop = new AbortController();
  const ask = capabilities.sampleMany ? sampleMany(session.connection) : askAlone;

  async function askAlone(body: Record<string, unknown>, aborted: AbortSignal): Promise<unknown> {
    const accepting = session.connection.post("asample", body);
    const cancel = () => {
      accepting.then(({ request_id }) => session.connection.post("cancel_future", { request_id })).catch(() => {});
    };
    aborted.addEventListener("abort", cancel, { once: true });
    try {
      return await session.connection.collect("sample", await accepting, aborted);
    } finally {
      aborted.removeEventListener("abort", cancel);
    }
  }

  /** Requests a lost result again under a new number. The weights are fixed, so the same seed gives the same sample. */
  async function answered(body: Record<string, unknown>, aborted: AbortSignal, bytes: number): Promise<unknown> {
    for (let losses = 0; ; losses++) {
      aborted.throwIfAborted();
      try {
        return await ask(losses === 0 ? body : { ...body, seq_id: sampler.next() }, aborted, bytes);
      } catch (error) {
        if (!(error instanceof LostResultError) || losses === maxLosses) throw error;
        session.connection.counts.retries++;
      }
    }
  }

  async function call(request: SampleRequest, index: number): Promise<void> {
    const aborted = AbortSignal.any([stop.signal, signal, request.signal].filter((each) => each !== undefined));
    try {
      const result = places.run(() => answered(bodies[index]!, aborted, imageBytes(chunks[index]!)), aborted);
      const sample = decode(request, decodeSampleResponse((await unlessAborted(result, aborted)) as Uint8Array));
      if (!capabilities.exactLogprobs && changesDistribution(request.params)) sample.processed = true;
      ready.push({ request: index, ...sample, policyVersion: sampler.version });
    } catch (error) {
      if (!aborted.aborted) throw error;
      // The service does not return the tokens of an aborted sample.
      const nothing = { tokens: new Int32Array(0), logprobs: new Float32Array(0) };
      ready.push({ request: index, ...nothing, stopReason: "aborted", policyVersion: sampler.version });
    }
  }

  ready.endWith(Promise.all(requests.map(call)));
  try {
    yield* ready;
  } finally {
    stop.abort();
  }
}

const imageBytes = (chunks: readonly InputChunk[]): number =>
  chunks.reduce((sum, chunk) => sum + (chunk.kind === "image" ? chunk.data.length : 0), 0);

function encode(
  chunks: readonly InputChunk[],
  { params, promptLogprobs, topLogprobs, topPromptLogprobs, temperedLogprobs }: SampleRequest,
  { capabilities }: TinkerSession,
  sampler: SamplingSession,
  eosTokenIds: readonly number[],
): Record<string, unknown> {
  if (params.minP > 0)
    throw new UserError("Tinker does not support min_p", { hint: "Set min_p to 0; top_p and top_k are supported." });
  return {
    type: "sample",
    sampling_session_id: sampler.id,
    seq_id: sampler.next(),
    num_samples: 1,
    prompt: { chunks: chunks.map(chunkToJson) },
    sampling_params: {
      max_tokens: params.maxTokens,
      seed: params.seed,
      temperature: params.temperature,
      top_k: params.topK,
      top_p: params.topP,
      stop: stopOf(params, eosTokenIds, capabilities),
      ignore_eos: params.ignoreEos && capabilities.ignoreEos ? true : undefined,
    },
    prompt_logprobs: promptLogprobs ?? false,
    topk_sample_logprobs: topLogprobs ?? 0,
    topk_prompt_logprobs: topPromptLogprobs,
    raw_logprobs: capabilities.exactLogprobs && !temperedLogprobs ? true : undefined,
  };
}

/** One list of tokens or texts. It includes the model's end tokens, because a service may stop only at the list. */
function stopOf(
  { stopIds, stopStrings, ignoreEos }: SamplingParams,
  eosTokenIds: readonly number[],
  capabilities: ServiceCapabilities,
) {
  if (stopIds.length > 0 && stopStrings.length > 0) {
    throw new UserError("Tinker does not support stop tokens and stop strings in one request");
  }
  const own = [...stopIds, ...stopStrings];
  if (ignoreEos && !capabilities.ignoreEos && own.length > 0) {
    throw new UserError("Tinker does not support ignore_eos together with other stop tokens or strings");
  }
  if (ignoreEos || stopStrings.length > 0) return own;
  return own.length > 0 ? [...new Set([...stopIds, ...eosTokenIds])] : undefined;
}

function decode(
  request: SampleRequest,
  { sequences, promptLogprobs, topPromptLogprobs }: ReturnType<typeof decodeSampleResponse>,
): Omit<Sample, "request" | "policyVersion"> {
  const [sequence] = sequences;
  if (!sequence) throw new RunError("the Tinker service returned an answer without a sample");
  const { tokens, logprobs, stopReason, top } = sequence;
  const sample: Omit<Sample, "request" | "policyVersion"> = { tokens, logprobs, stopReason };
  if (request.promptLogprobs && promptLogprobs) sample.promptLogprobs = promptLogprobs;
  if (top) sample.topLogprobs = rowsOf(top);
  if (topPromptLogprobs) sample.topPromptLogprobs = rowsOf(topPromptLogprobs);
  return sample;
}

const rowsOf = ({ tokens, logprobs, k, length }: TopLogprobs): LikelyTokens[] =>
  Array.from({ length }, (_, row) => ({
    tokens: tokens.slice(row * k, (row + 1) * k),
    logprobs: logprobs.slice(row * k, (row + 1) * k),
  }));
