/** SGLang's own `/generate`: `input_ids` in, `meta_info.output_token_logprobs` out. */
import type { SampleRequest } from "../../backends/engine.ts";
import { isObject } from "../read-parameters.ts";
import {
  type Dialect,
  MissingTokens,
  readVersions,
  toLogprobs,
  toVersion,
  type UpstreamReply,
} from "./upstream-policy.ts";
import { stopReason } from "./vllm.ts";

/** `[log-probability, token id, text]` */
type Entry = [number, number, string | null];

export const sglang: Dialect = {
  path: "/generate",
  write({ prompt, params, topLogprobs = 0 }: SampleRequest, _, stream) {
    return {
      input_ids: Array.from(prompt),
      sampling_params: {
        max_new_tokens: params.maxTokens,
        temperature: params.temperature,
        top_p: params.topP,
        top_k: params.topK,
        min_p: params.minP,
        // Else those that the server was started with apply, and what is sampled is not the policy's.
        ...{ repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 },
        ...(params.stopStrings.length > 0 ? { stop: params.stopStrings } : {}),
        ...(params.stopIds.length > 0 ? { stop_token_ids: params.stopIds } : {}),
        ...(params.ignoreEos ? { ignore_eos: true } : {}),
        // It takes 32 bits.
        sampling_seed: params.seed % 2 ** 31,
      },
      return_logprob: true,
      ...(topLogprobs > 0 ? { top_logprobs_num: topLogprobs } : {}),
      ...(stream ? { stream } : {}),
    };
  },
  read: (body) => readReply(body, 0),
  openStream() {
    let seen = 0;
    return (event) => {
      const reply = readReply(event, seen);
      seen += reply.tokens.length;
      return reply;
    };
  },
};

/**
 * @param seen tokens of the reply that were told before. Servers tell the whole reply so far with each event, or, started
 * with --incremental-streaming-output, what is new: the count of all tells which.
 */
function readReply(body: Record<string, unknown>, seen: number): UpstreamReply {
  const info = isObject(body.meta_info) ? body.meta_info : {};
  const { output_token_logprobs: told, output_top_logprobs: top, finish_reason: reason } = info;
  if (!Array.isArray(told)) throw new MissingTokens("its answer has no meta_info.output_token_logprobs");
  const all = Number(info.output_token_logprobs_length ?? told.length);
  const skip = Math.max(0, seen - (all - told.length));
  const entries = told.slice(skip) as Entry[];
  const version = toVersion(info.weight_version);
  return {
    tokens: Int32Array.from(entries, ([, token]) => token),
    logprobs: toLogprobs(
      entries.map(([logprob]) => logprob),
      "meta_info.output_token_logprobs",
    ),
    ...(Array.isArray(top) ? { topLogprobs: (top as Entry[][]).slice(skip).map(readTop) } : {}),
    stopReason: readStop(reason),
    versions: readVersions(info.weight_versions) ?? (version === undefined ? undefined : [{ version, end: all }]),
  };
}

function readStop(reason: unknown): UpstreamReply["stopReason"] {
  if (reason === null || reason === undefined) return undefined;
  if (!isObject(reason)) return stopReason(String(reason));
  // One that the server gave up, in its own words.
  if (reason.type === "abort" && typeof reason.status_code === "number") throw new Error(String(reason.message));
  return stopReason(String(reason.type));
}

const readTop = (entries: Entry[]) => ({
  tokens: Int32Array.from(entries, ([, token]) => token),
  logprobs: Float32Array.from(entries, ([logprob]) => logprob),
});
