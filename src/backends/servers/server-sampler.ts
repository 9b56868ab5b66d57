/** An inference server as a sampler: token ids in, token ids and log-probabilities out, over HTTP. */
import { Pool } from "undici";
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import { UserError } from "../../errors.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../engine.ts";
import { changesDistribution } from "../sampling-params.ts";
import { MissingTokens, type ServerReply, type VersionSpan } from "./dialect.ts";
import { gatherEvents } from "./gather-events.ts";
import { post } from "./post.ts";
import { sglang } from "./sglang.ts";
import { vllm } from "./vllm.ts";

export interface ServerSamplerOptions {
  /** Up to and without `/v1`, e.g. `"http://127.0.0.1:8000"`; a `/v1` at its end is dropped. */
  url: string;
  /** `vllm`: any server whose `/v1/completions` takes and returns token ids as vLLM's does. Default "vllm". */
  kind?: "vllm" | "sglang";
  /** The model's name at the server; SGLang has only one. */
  model?: string;
  apiKey?: string;
  /**
   * Which log-probabilities the server was started to give. By default vLLM's are `raw` and SGLang's `processed`. Set this
   * for vLLM with `--logprobs-mode processed_logprobs`, and for SGLang with `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
   */
  logprobs?: Sampler["logprobs"];
  /** Version of the model's weights; default: the one that the server reports. */
  version?: number;
}

/**
 * @example
 * const sampler = serverSampler({ url: "http://127.0.0.1:8000", model: "Qwen/Qwen3-0.6B" });
 * const gateway = await openGateway({ chat, model: "policy", openUnknown: policySessions({ sampler, chat, limits }) });
 */
export function serverSampler(options: ServerSamplerOptions): Sampler {
  const base = new URL(options.url);
  const prefix = base.pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  // A reply may take any time: the caller sets the limit.
  const pool = new Pool(base.origin, { connections: 1024, headersTimeout: 0, bodyTimeout: 0 });
  const dialect = options.kind === "sglang" ? sglang : vllm;
  const path = prefix + dialect.path;
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (options.apiKey !== undefined) headers.authorization = `Bearer ${options.apiKey}`;
  const mode = options.logprobs ?? dialect.logprobs;
  /** The newest that the server has reported, if it is asked. */
  let version = options.version ?? 0;

  async function one(index: number, request: SampleRequest, { signal, onToken }: SampleOptions): Promise<Sample> {
    const stops = [request.signal, signal].filter((each) => each !== undefined);
    // A signal of its own: many requests listen to the caller's.
    const stop = stops.length > 0 ? AbortSignal.any(stops) : undefined;
    const report = (piece: ServerReply) => {
      for (const [at, token] of piece.tokens.entries()) onToken?.(index, token, piece.logprobs[at]!);
    };
    // Streams do not hold the prompt's log-probabilities.
    const streams = onToken !== undefined && !request.promptLogprobs;
    const events = streams ? gatherEvents(dialect.openStream(request), report) : undefined;
    try {
      const body = JSON.stringify(dialect.write(request, options.model, streams));
      const answer = await post({ pool, path, headers, body, signal: stop, onText: events?.push });
      const reply = events?.end() ?? dialect.read(JSON.parse(answer) as Record<string, unknown>, request);
      if (!events) report(reply);
      return toSample(index, request, reply);
    } catch (error) {
      if (stop?.aborted) return toSample(index, request, { ...nothing, ...events?.soFar(), stopReason: "aborted" });
      if (!(error instanceof MissingTokens)) throw error;
      throw new UserError(`the inference server at ${options.url} does not return token ids: ${error.message}`, {
        hint: "Hone trains on tokens, not on text: use vLLM 0.10.2 or newer (return_token_ids), or SGLang",
        cause: error,
      });
    }
  }

  function toSample(index: number, request: SampleRequest, reply: ServerReply): Sample {
    const { tokens, logprobs, promptLogprobs, topLogprobs, stopReason = "aborted" } = reply;
    const versions = options.version === undefined ? (reply.versions ?? []) : [];
    version = versions.at(-1)?.version ?? version;
    const sample: Sample = { request: index, tokens, logprobs, stopReason, policyVersion: version };
    if (mode === "processed" && changesDistribution(request.params)) sample.processed = true;
    if (versions.length > 1) sample.tokenVersions = spread(versions, tokens.length);
    if (topLogprobs !== undefined) sample.topLogprobs = topLogprobs;
    if (promptLogprobs !== undefined) sample.promptLogprobs = promptLogprobs;
    return sample;
  }

  return {
    get version() {
      return version;
    },
    logprobs: mode,
    separate: true,
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
    async load({ kind }) {
      throw new UserError(`the inference server at ${options.url} cannot load weights of the kind "${kind}"`, {
        hint: "a run loads them through local.sampler.url",
      });
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

const nothing = { tokens: new Int32Array(0), logprobs: new Float32Array(0), versions: undefined };
