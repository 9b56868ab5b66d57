/** Samples from inference servers: requests, streams, and replies joined after a failure or new weights. */
import { randomUUID } from "node:crypto";
import { AsyncQueue } from "../../base/concurrency.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { isTemporaryStatus } from "../../base/http.ts";
import { deriveSeed, isObject } from "../../base/values.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../engine.ts";
import { changesDistribution } from "../engine-parts.ts";
import { type Dialect, MissingTokens, type ServerReply, type VersionSpan } from "./dialect.ts";
import { openServers, type Server, ServerFailed, type ServerGroup, type ServerSettings } from "./group.ts";
import { post, type ServedImages, toServed } from "./requests.ts";
import { sglang } from "./sglang.ts";
import { vllmCompletions, vllmDialect } from "./vllm.ts";

// Joins the parts of a reply: the events of a stream, and what was sampled before and after a failure or new weights.

/**
 * Assembles a reply from a stream of server-sent events.
 *
 * @param read one event
 * @param onPiece called for each event
 */
function gatherEvents(
  read: (event: Record<string, unknown>) => ServerReply,
  onPiece: (piece: ServerReply) => void,
): { push(text: string): void; soFar(): ServerReply; end(): ServerReply } {
  const pieces: ServerReply[] = [];
  let rest = "";
  let ended = false;

  function soFar(): ServerReply {
    const top = pieces.flatMap(({ topLogprobs }) => topLogprobs ?? []);
    const reply: ServerReply = {
      tokens: Int32Array.from(pieces.flatMap(({ tokens }) => Array.from(tokens))),
      logprobs: Float32Array.from(pieces.flatMap(({ logprobs }) => Array.from(logprobs))),
      stopReason: pieces.findLast(({ stopReason }) => stopReason !== undefined)?.stopReason,
      versions: pieces.findLast(({ versions }) => versions !== undefined)?.versions,
    };
    if (top.length > 0) reply.topLogprobs = top;
    const routing = pieces.at(-1)?.routing;
    if (routing !== undefined) reply.routing = routing;
    return reply;
  }

  return {
    push(text) {
      const lines = (rest + text).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice("data:".length).trim();
        if (data === "[DONE]") {
          ended = true;
          continue;
        }
        const event = JSON.parse(data) as Record<string, unknown>;
        if (isObject(event.error)) {
          const Failure = isTemporaryStatus(Number(event.error.code)) ? ServerFailed : RunError;
          throw new Failure(`the inference server's stream failed: ${event.error.message}`);
        }
        const piece = read(event);
        pieces.push(piece);
        onPiece(piece);
      }
    },
    soFar,
    end() {
      const reply = soFar();
      if (ended && reply.stopReason !== undefined) return reply;
      throw new ServerFailed("the inference server's stream ended before the reply was complete");
    },
  };
}

/** The request for the rest of a reply. Its random draws differ from those of an uninterrupted reply. */
export function continuedRequest(request: SampleRequest, parts: readonly ServerReply[]): SampleRequest {
  const done = parts.reduce((sum, { tokens }) => sum + tokens.length, 0);
  if (done === 0) return request;
  const { prompt, params } = request;
  return {
    ...request,
    prompt: Int32Array.of(...prompt, ...parts.flatMap(({ tokens }) => [...tokens])),
    params: { ...params, maxTokens: params.maxTokens - done, seed: deriveSeed(params.seed, "continued", done) },
  };
}

export function joinReplies(parts: readonly ServerReply[]): ServerReply {
  const [first, ...others] = parts;
  if (first === undefined) throw new Error("a reply has at least one part");
  if (others.length === 0) return first;
  const topLogprobs = parts.flatMap((part) => part.topLogprobs ?? []);
  const joined: ServerReply = {
    tokens: Int32Array.from(parts.flatMap(({ tokens }) => [...tokens])),
    logprobs: Float32Array.from(parts.flatMap(({ logprobs }) => [...logprobs])),
    stopReason: parts.at(-1)!.stopReason,
    versions: joinVersions(parts),
  };
  if (topLogprobs.length > 0) joined.topLogprobs = topLogprobs;
  const routing = parts.flatMap((part) => part.routing ?? []);
  if (routing.length > 0) joined.routing = routing;
  if (first.promptLogprobs !== undefined) joined.promptLogprobs = first.promptLogprobs;
  if (first.topPromptLogprobs !== undefined) joined.topPromptLogprobs = first.topPromptLogprobs;
  return joined;
}

/** Undefined if any part with tokens has no such values. */
function joinVersions(parts: readonly ServerReply[]): VersionSpan[] | undefined {
  const joined: VersionSpan[] = [];
  let start = 0;
  for (const { tokens, versions } of parts) {
    if (versions === undefined && tokens.length > 0) return undefined;
    for (const { version, end } of versions ?? []) {
      const last = joined.at(-1);
      if (last?.version === version) last.end = start + end;
      else joined.push({ version, end: start + end });
    }
    start += tokens.length;
  }
  return joined;
}

// Inference servers as a sampler: token ids in, token ids and log-probabilities out, over HTTP.

export interface ServedModelOptions {
  /**
   * `vllm`: any server whose `/inference/v1/generate` or, without that route, `/v1/completions` takes and returns token ids as
   * vLLM's does. Default "vllm".
   */
  kind?: "vllm" | "sglang";
  /** The model's name at the server; SGLang has only one. */
  model?: string | undefined;
  /** Name of an adapter that is loaded on the servers. */
  adapter?: string;
  /**
   * The kind of log-probabilities that the server reports. By default vLLM's are `raw` and SGLang's `processed`. Set this
   * for vLLM with `--logprobs-mode processed_logprobs`, and for SGLang with `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
   */
  logprobs?: Sampler["logprobs"];
  /** Version of the model's weights; default: the one that the server reports. */
  version?: number;
  /** The server must report versions, because it has the weights of a run. */
  isLabelled?: boolean;
  /** Absent: requests with images are refused. */
  images?: ServedImages | undefined;
}

export interface ServerSamplerOptions extends ServedModelOptions {
  /**
   * The address without `/v1`, e.g. `"http://127.0.0.1:8000"`; a `/v1` at the end is dropped. With several servers of the
   * same model, requests go to the least busy one, and requests of a session to the same one. A server that fails is not
   * used until it answers again; its requests are sent to another one.
   */
  url: string | readonly string[];
  apiKey?: string | undefined;
  /** Named in messages. Default: the settings of a run's sampler. */
  settings?: ServerSettings;
  /** Called with a line when a server is excluded, and when it is used again. */
  onNote?: (text: string) => void;
  /** A request fails after this many seconds without progress (no answer, or no token of a stream). Default 1800. */
  timeoutSeconds?: number;
}

/**
 * Samples tokens with their log-probabilities from running vLLM or SGLang servers.
 *
 * @example
 * const sampler = serverSampler({ url: "http://127.0.0.1:8000", model: "Qwen/Qwen3-0.6B" });
 * const gateway = await openGateway({ chat, model: "policy", openUnknown: policySessions({ sampler, chat, limits }) });
 */
export function serverSampler(options: ServerSamplerOptions): Sampler {
  const group = openServers({ ...options, urls: typeof options.url === "string" ? [options.url] : options.url });
  return Object.assign(sampleFrom(group, options), { close: group.close });
}

/** The model that samples the next part of a reply. */
export interface ModelInUse extends Pick<ServedModelOptions, "model" | "adapter" | "version"> {
  /** Called when the part is sampled. */
  release(): void;
}

export interface ServedSampler extends Sampler {
  /** The prompt of the request that was sent last. */
  readonly lastPrompt: Pick<SampleRequest, "prompt" | "media"> | undefined;
  /**
   * Ends the running requests at the servers and continues each from its tokens, with the model that `acquire` returns now.
   * Requests at servers that cannot end requests are not changed.
   *
   * @param endAll ends all requests of the servers; used instead of their own route
   */
  interrupt(endAll?: () => Promise<void>): Promise<void>;
}

interface Call {
  index: number;
  request: SampleRequest;
  stop: AbortSignal | undefined;
  onToken: SampleOptions["onToken"] | undefined;
  /** Whether the reply must be continued with another model. */
  interrupted: boolean;
}

/**
 * A sampler of one model at the servers. Closing it does not close the servers.
 *
 * @param acquire called for each part of a reply; default: always the same model
 */
export function sampleFrom(
  group: Pick<ServerGroup, "run" | "servers">,
  options: ServedModelOptions,
  acquire: () => Promise<ModelInUse> = async () => ({ ...options, release: () => {} }),
): ServedSampler {
  const mode = options.logprobs ?? (options.kind === "sglang" ? sglang : vllmCompletions).logprobs;
  /** The newest version that the server has reported. */
  let version = options.version ?? 0;

  let lastPrompt: ServedSampler["lastPrompt"];
  const running = new Map<Call, { server: Server; dialect: Dialect; id: string }>();

  /** @param parts the parts sampled so far; if a server fails in the middle of a stream, the tokens it has sent are added */
  async function ask(server: Server, call: Call, parts: ServerReply[]): Promise<ServerReply> {
    const { url, prefix } = server;
    const { index, stop, onToken } = call;
    const dialect = options.kind === "sglang" ? sglang : await vllmDialect(server);
    const request = continuedRequest(call.request, parts);
    if (request.params.maxTokens === 0) return { ...nothing, stopReason: "length" };
    if (request.media?.length && !dialect.images) {
      throw new UserError(`the inference server at ${url} does not accept images through ${dialect.path}`, {
        hint: "use vLLM 0.32 or newer with --enable-scale-out",
      });
    }
    const served = await toServed(request, options.images, dialect.images);
    lastPrompt = call.request;
    const { model, adapter, version: known, release } = await acquire();
    /** A known version applies to the whole part. */
    const stamp = (reply: ServerReply): ServerReply =>
      known === undefined ? reply : { ...reply, versions: [{ version: known, end: reply.tokens.length }] };
    const name = adapter ?? (options.kind === "sglang" ? undefined : model);
    const id = randomUUID();
    running.set(call, { server, dialect, id });
    const report = (piece: ServerReply) => {
      for (const [at, token] of piece.tokens.entries()) onToken?.(index, token, piece.logprobs[at]!);
    };
    // Streams do not contain the log-probabilities of the prompt.
    const streams = onToken !== undefined && !request.promptLogprobs && request.topPromptLogprobs === undefined;
    const events = streams ? gatherEvents(dialect.openStream(request), report) : undefined;
    try {
      const body = JSON.stringify(dialect.write(served, name, streams, id));
      const path = prefix + dialect.path;
      const answer = await post({ server, path, body, signal: stop, onText: events?.push });
      const reply = events?.end() ?? dialect.read(JSON.parse(answer) as Record<string, unknown>, request);
      if (!events) report(reply);
      if (options.isLabelled && reply.versions === undefined && reply.tokens.length > 0)
        throw new RunError(`the inference server at ${url} sampled with weights that are not the run's`);
      return stamp(reply);
    } catch (error) {
      const sent = events && stamp(events.soFar());
      if (stop?.aborted) return { ...nothing, ...sent, stopReason: "aborted" };
      if (sent?.stopReason !== undefined) return sent;
      if (sent !== undefined && sent.tokens.length > 0) parts.push(sent);
      if (!(error instanceof MissingTokens)) throw error;
      throw new UserError(`the inference server at ${url} does not return token ids: ${error.message}`, {
        hint: "Hone trains on token ids, not on text: use vLLM 0.10.2 or newer (return_token_ids), or SGLang",
        cause: error,
      });
    } finally {
      running.delete(call);
      release();
    }
  }

  async function one(index: number, request: SampleRequest, { signal, onToken }: SampleOptions): Promise<Sample> {
    const stops = [request.signal, signal].filter((each) => each !== undefined);
    // A separate signal, because many requests listen to the caller's signal.
    const stop = stops.length > 0 ? AbortSignal.any(stops) : undefined;
    const call: Call = { index, request, stop, onToken, interrupted: false };
    const parts: ServerReply[] = [];
    for (;;) {
      parts.push(await group.run(request.session, (server) => ask(server, call, parts)));
      const isInterrupted = call.interrupted && parts.at(-1)?.stopReason === "aborted" && !stop?.aborted;
      if (!isInterrupted) return toSample(index, request, joinReplies(parts));
      call.interrupted = false;
    }
  }

  function toSample(index: number, request: SampleRequest, reply: ServerReply): Sample {
    const { tokens, logprobs, routing, promptLogprobs, topLogprobs, topPromptLogprobs, stopReason = "aborted" } = reply;
    const versions = reply.versions ?? [];
    version = versions.at(-1)?.version ?? version;
    const sample: Sample = { request: index, tokens, logprobs, stopReason, policyVersion: version };
    if (mode === "processed" && changesDistribution(request.params)) sample.processed = true;
    if (versions.length > 1) sample.tokenVersions = spread(versions, tokens.length);
    if (routing !== undefined) sample.routing = routing;
    if (topLogprobs !== undefined) sample.topLogprobs = topLogprobs;
    if (promptLogprobs !== undefined) sample.promptLogprobs = promptLogprobs;
    if (topPromptLogprobs !== undefined) sample.topPromptLogprobs = topPromptLogprobs;
    return sample;
  }

  return {
    get version() {
      return version;
    },
    get lastPrompt() {
      return lastPrompt;
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
      samples.endWith(Promise.all(calls));
      yield* samples;
    },
    async load({ kind }) {
      throw new UserError(
        `the inference server at ${group.servers[0]?.url} cannot load weights of the kind "${kind}"`,
        {
          hint: "a run loads them through local.sampler.url",
        },
      );
    },
    async interrupt(endAll) {
      if (endAll) {
        for (const call of running.keys()) call.interrupted = true;
        return endAll();
      }
      const ended = [...running].map(async ([call, { server, dialect, id }]) => {
        if (dialect.abort === undefined) return;
        call.interrupted = true;
        const { path, body } = dialect.abort([id]);
        const signal = AbortSignal.timeout(abortMs);
        await post({ server, path: server.prefix + path, body: JSON.stringify(body), signal, onText: undefined });
      });
      // A request that does not end keeps its model.
      await Promise.allSettled(ended);
    },
    close: async () => {},
  };
}

const abortMs = 30_000;

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
