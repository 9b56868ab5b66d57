/** An inference server as a policy that samples: token ids in, token ids and log-probabilities out, over HTTP. */
import { Pool } from "undici";
import type { Policy, Sample, SampleOptions, SampleRequest } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
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
  /** Undefined: the server's streams are not used, and tokens are told when the reply is whole. */
  readChunk?: (chunk: Record<string, unknown>) => UpstreamReply;
}

export interface UpstreamReply extends Pick<Sample, "tokens" | "logprobs" | "topLogprobs"> {
  /** Undefined while it is being streamed. */
  stopReason: Sample["stopReason"] | undefined;
  version: number | undefined;
}

/** Thrown by dialects: what is missing, in the server's own words. */
export class MissingTokens extends Error {
  override name = "MissingTokens";
}

export interface UpstreamPolicy extends Pick<Policy, "sample"> {
  close(): Promise<void>;
}

/**
 * @example
 * const policy = upstreamPolicy({ url: "http://127.0.0.1:8000", model: "Qwen/Qwen3-0.6B" });
 * const gateway = await openGateway({ chat, model: "policy", openUnknown: policySessions({ policy, chat, limits }) });
 */
export function upstreamPolicy(options: UpstreamOptions): UpstreamPolicy {
  const base = new URL(options.url);
  const prefix = base.pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  // A reply may take as long as it takes; who waits for it has a limit of its own.
  const pool = new Pool(base.origin, { connections: 1024, headersTimeout: 0, bodyTimeout: 0 });
  const dialect = options.kind === "sglang" ? sglang : vllm;
  const headers = {
    "content-type": "application/json",
    ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }),
  };

  async function one(index: number, request: SampleRequest, { signal, onToken }: SampleOptions): Promise<Sample> {
    const stop = request.signal ?? signal;
    const stream = onToken !== undefined && dialect.readChunk !== undefined;
    try {
      const body = JSON.stringify(dialect.write(request, options.model, stream));
      const told = (reply: UpstreamReply) => {
        for (const [at, token] of reply.tokens.entries()) onToken?.(index, token, reply.logprobs[at]!);
      };
      const events = stream ? gatherEvents(dialect.readChunk!, told) : undefined;
      const posted = { pool, path: prefix + dialect.path, headers, body, signal: stop };
      const answer = await post(events ? { ...posted, onText: events.push } : posted);
      const reply = events?.end() ?? dialect.read(JSON.parse(answer) as Record<string, unknown>, request);
      if (!events) told(reply);
      const { tokens, logprobs, topLogprobs, stopReason = "aborted", version } = reply;
      return {
        ...{ request: index, tokens, logprobs, stopReason },
        policyVersion: version ?? options.version?.() ?? 0,
        ...(topLogprobs === undefined ? {} : { topLogprobs }),
      };
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
    async *sample(requests, sampleOptions = {}) {
      const running = new Map(requests.map((request, index) => [index, one(index, request, sampleOptions)]));
      // One that fails is thrown below; the others must not go unheard until then.
      for (const sample of running.values()) sample.catch(() => {});
      while (running.size > 0) {
        const sample = await Promise.race(running.values());
        running.delete(sample.request);
        yield sample;
      }
    },
    close: () => pool.destroy(),
  };
}

const aborted = (request: number): Sample => ({
  ...{ request, tokens: new Int32Array(0), logprobs: new Float32Array(0), stopReason: "aborted", policyVersion: 0 },
});
