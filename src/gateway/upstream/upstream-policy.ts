/** An inference server as a policy that samples: token ids in, token ids and log-probabilities out, over HTTP. */

import { Pool } from "undici";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../../backends/engine.ts";
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { UserError } from "../../errors.ts";
import { isObject } from "../read-parameters.ts";
import { gatherEvents } from "./gather-events.ts";
import { post } from "./post.ts";
import { sglang } from "./sglang.ts";
import { vllm } from "./vllm.ts";

export interface UpstreamOptions {
  /** Up to and without `/v1`, e.g. `"http://127.0.0.1:8000"`; a `/v1` at its end is dropped. */
  url: string;
  /** `vllm`: any server whose `/v1/completions` takes and returns token ids as vLLM's does. Default "vllm". */
  kind?: "vllm" | "sglang";
  /** The model's name at the server; SGLang has only one. */
  model?: string;
  apiKey?: string;
  /** Of its weights, where the server does not say. Default 0. */
  version?: () => number;
}

/** How one kind of server is spoken to. */
export interface Dialect {
  path: string;
  /** @returns the request's body */
  write(request: SampleRequest, model: string | undefined, stream: boolean): Record<string, unknown>;
  /**
   * @param body of an answer
   * @throws MissingTokens when it tells no token ids
   */
  read(body: Record<string, unknown>, request: SampleRequest): UpstreamReply;
  /** @returns the reader of one reply's stream: each event's new tokens */
  openStream(request: SampleRequest): (event: Record<string, unknown>) => UpstreamReply;
}

export interface UpstreamReply extends Pick<Sample, "tokens" | "logprobs" | "topLogprobs"> {
  /** Undefined while it is being streamed. */
  stopReason: Sample["stopReason"] | undefined;
  /** Which weights sampled which tokens, first to last and without a gap; undefined where the server does not say. */
  versions: VersionSpan[] | undefined;
}

/** The tokens up to `end`. */
export interface VersionSpan {
  version: number;
  end: number;
}

/** Thrown by dialects: what is missing, in the server's own words. */
export class MissingTokens extends Error {
  override name = "MissingTokens";
}

/**
 * @example
 * const policy = upstreamPolicy({ url: "http://127.0.0.1:8000", model: "Qwen/Qwen3-0.6B" });
 * const gateway = await openGateway({ chat, model: "policy", openUnknown: policySessions({ policy, chat, limits }) });
 */
export function upstreamPolicy(options: UpstreamOptions): Sampler {
  const base = new URL(options.url);
  const prefix = base.pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  // A reply may take as long as it takes; who waits for it has a limit of its own.
  const pool = new Pool(base.origin, { connections: 1024, headersTimeout: 0, bodyTimeout: 0 });
  const dialect = options.kind === "sglang" ? sglang : vllm;
  const path = prefix + dialect.path;
  const headers = {
    "content-type": "application/json",
    ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }),
  };

  async function one(index: number, request: SampleRequest, { signal, onToken }: SampleOptions): Promise<Sample> {
    const stop = request.signal ?? signal;
    const stream = onToken !== undefined;
    try {
      const body = JSON.stringify(dialect.write(request, options.model, stream));
      const told = (reply: UpstreamReply) => {
        for (const [at, token] of reply.tokens.entries()) onToken?.(index, token, reply.logprobs[at]!);
      };
      const events = stream ? gatherEvents(dialect.openStream(request), told) : undefined;
      const answer = await post({ pool, path, headers, body, signal: stop, onText: events?.push });
      const reply = events?.end() ?? dialect.read(JSON.parse(answer) as Record<string, unknown>, request);
      if (!events) told(reply);
      const { tokens, logprobs, topLogprobs, stopReason = "aborted", versions } = reply;
      const policyVersion = versions?.at(-1)?.version ?? options.version?.() ?? 0;
      const sample: Sample = { request: index, tokens, logprobs, stopReason, policyVersion };
      if (versions !== undefined && versions.length > 1) sample.tokenVersions = spread(versions, tokens.length);
      if (topLogprobs !== undefined) sample.topLogprobs = topLogprobs;
      return sample;
    } catch (error) {
      if (stop?.aborted) return aborted(index);
      if (!(error instanceof MissingTokens)) throw error;
      throw new UserError(`the inference server at ${options.url} gives no token ids: ${error.message}`, {
        hint: "Hone trains on tokens, never on text: use a vLLM that knows return_token_ids (0.10.2 or newer) or SGLang",
        cause: error,
      });
    }
  }

  return {
    get version() {
      return options.version?.() ?? 0;
    },
    logprobs: "raw",
    separate: true,
    async load() {
      throw new UserError(`the inference server at ${options.url} cannot be given new weights`);
    },
    async *sample(requests, sampleOptions = {}) {
      if (requests.length === 1) {
        yield await one(0, requests[0]!, sampleOptions);
        return;
      }
      const samples = new AsyncQueue<Sample>();
      const calls = requests.map(async (request, index) => samples.push(await one(index, request, sampleOptions)));
      Promise.all(calls).then(
        () => samples.end(),
        (error: unknown) => samples.fail(error),
      );
      yield* samples;
    },
    close: () => pool.destroy(),
  };
}

/** `[T]` */
function spread(versions: readonly VersionSpan[], length: number): Int32Array {
  const spreadOut = new Int32Array(length);
  let start = 0;
  for (const { version, end } of versions) {
    spreadOut.fill(version, start, end);
    start = end;
  }
  return spreadOut;
}

/**
 * Labels of weights are the trainer's to choose; only numbers say which are older.
 *
 * @param spans `[{ version: "3", start: 0, end: 17 }, ...]`
 */
export function readVersions(spans: unknown): VersionSpan[] | undefined {
  if (!Array.isArray(spans) || spans.length === 0 || !spans.every(isObject)) return undefined;
  const versions = spans.map(({ version, end }) => ({ version: toVersion(version), end: Number(end) }));
  return versions.every((span): span is VersionSpan => span.version !== undefined) ? versions : undefined;
}

export const toVersion = (label: unknown): number | undefined =>
  (typeof label === "number" || (typeof label === "string" && label.trim() !== "")) && Number.isInteger(Number(label))
    ? Number(label)
    : undefined;

/** @throws MissingTokens where one is missing: null, as JSON writes what is no number, would be read as certain */
export function toLogprobs(given: readonly unknown[], where: string): Float32Array {
  if (!given.every((logprob) => typeof logprob === "number")) {
    throw new MissingTokens(`${where} holds ${JSON.stringify(given.find((logprob) => typeof logprob !== "number"))}`);
  }
  return Float32Array.from(given);
}

const aborted = (request: number): Sample => ({
  ...{ request, tokens: new Int32Array(0), logprobs: new Float32Array(0), stopReason: "aborted", policyVersion: 0 },
});
