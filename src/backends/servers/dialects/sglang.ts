/** SGLang's own `/generate`: `input_ids` in, `meta_info.output_token_logprobs` out. */
import { isObject } from "../../../is-object.ts";
import type { SampleRequest } from "../../engine.ts";
import {
  type Dialect,
  MissingTokens,
  readVersions,
  type ServerReply,
  toLogprobs,
  toStopReason,
  toVersion,
} from "./dialect.ts";

/** `[log-probability, token id, text]` */
type Entry = [number, number, string | null];

export const sglang: Dialect = {
  path: "/generate",
  // After the temperature, unless the server was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1.
  logprobs: "processed",
  write({ prompt, params, promptLogprobs, topLogprobs = 0 }: SampleRequest, adapter, stream) {
    // JSON.stringify omits undefined values.
    return {
      input_ids: Array.from(prompt),
      sampling_params: {
        max_new_tokens: params.maxTokens,
        temperature: params.temperature,
        top_p: params.topP,
        top_k: params.topK,
        min_p: params.minP,
        // Otherwise the server's default penalties would change the samples.
        repetition_penalty: 1,
        presence_penalty: 0,
        frequency_penalty: 0,
        stop: params.stopStrings.length > 0 ? params.stopStrings : undefined,
        stop_token_ids: params.stopIds.length > 0 ? params.stopIds : undefined,
        ignore_eos: params.ignoreEos || undefined,
        // SGLang accepts seeds of 32 bits.
        sampling_seed: params.seed % 2 ** 31,
      },
      // Without this field, the base model samples.
      lora_path: adapter,
      return_logprob: true,
      logprob_start_len: promptLogprobs ? 0 : undefined,
      top_logprobs_num: topLogprobs > 0 ? topLogprobs : undefined,
      stream: stream || undefined,
    };
  },
  read(body) {
    const reply = readReply(body, 0);
    const { input_token_logprobs: given } = isObject(body.meta_info) ? body.meta_info : {};
    if (Array.isArray(given)) reply.promptLogprobs = readPrompt(given as Entry[]);
    return reply;
  },
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
 * @param seen number of tokens in earlier events. An event contains the whole reply so far or, with
 * --incremental-streaming-output, only the new tokens; the total count shows which of the two.
 */
function readReply(body: Record<string, unknown>, seen: number): ServerReply {
  const info = isObject(body.meta_info) ? body.meta_info : {};
  const { output_token_logprobs: given, output_top_logprobs: top, finish_reason: reason } = info;
  if (!Array.isArray(given)) throw new MissingTokens("its answer has no meta_info.output_token_logprobs");
  const all = Number(info.output_token_logprobs_length ?? given.length);
  const skip = Math.max(0, seen - (all - given.length));
  const entries = given.slice(skip) as Entry[];
  const version = toVersion(info.weight_version);
  const reply: ServerReply = {
    tokens: Int32Array.from(entries, ([, token]) => token),
    logprobs: toLogprobs(
      entries.map(([logprob]) => logprob),
      "meta_info.output_token_logprobs",
    ),
    stopReason: readStop(reason),
    versions: readVersions(info.weight_versions) ?? (version === undefined ? undefined : [{ version, end: all }]),
  };
  if (Array.isArray(top)) reply.topLogprobs = (top as Entry[][]).slice(skip).map(readTop);
  return reply;
}

function readPrompt([, ...rest]: Entry[]): Float32Array {
  const logprobs = rest.map(([logprob]) => logprob);
  return Float32Array.of(Number.NaN, ...toLogprobs(logprobs, "meta_info.input_token_logprobs"));
}

function readStop(reason: unknown): ServerReply["stopReason"] {
  if (reason === null || reason === undefined) return undefined;
  if (!isObject(reason)) return toStopReason(String(reason));
  // The server dropped the request and gives the reason.
  if (reason.type === "abort" && typeof reason.status_code === "number") throw new Error(String(reason.message));
  return toStopReason(String(reason.type));
}

const readTop = (entries: Entry[]) => ({
  tokens: Int32Array.from(entries, ([, token]) => token),
  logprobs: Float32Array.from(entries, ([logprob]) => logprob),
});
