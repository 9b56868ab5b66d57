/**
 * SGLang's own `/generate`: `input_ids` in, `meta_info.output_token_logprobs` out.
 *
 * Images of Qwen2-VL and Qwen2.5-VL: tokens with one placeholder for each image (`input_ids`, `image_data`), which SGLang 0.5.13 and newer
 * expands. If this fails, it encodes the decoded text again and only logs a warning, so the prompt that it computed
 * (`return_prompt_token_ids`) must equal Hone's tokens.
 * - Every placeholder counts as an image, and a prompt with more placeholders than images hangs: a call fails if the model sampled one.
 *   Images of one token are refused, because the tokens would be the same if SGLang ignored the image.
 * - Other families go through transformers' processors, which fail for token ids (`'int' object has no attribute 'count'`): refused.
 * - Images of Qwen2-VL are always resized to 3136 to 1003520 pixels. With other limits in the model's folder, the call fails.
 * - The tokens of images are replaced by hashes, without log-probabilities, so the probe omits them. Transparency is dropped: refused.
 * - `processor_output` and `precomputed_embedding` are not in SGLang's JSON contract, and the models need tensors.
 * It never ran with images: scripts/proofs/upstream-contract/sglang_images.py gives Hone's requests to SGLang's own tokenizer manager.
 */
import { UserError } from "../../base/errors.ts";
import { isObject } from "../../base/values.ts";
import type { SampleRequest } from "../engine.ts";
import {
  type Dialect,
  MissingTokens,
  readVersions,
  type ServerReply,
  toLogprobs,
  toStopReason,
  toVersion,
} from "./dialect.ts";
import { requireSamePrompt, type ServedRequest } from "./requests.ts";

/** `[log-probability, token id, text]` */
type Entry = [number, number, string | null];

export const sglang: Dialect = {
  path: "/generate",
  images: { placeholders: "all", transparency: false },
  // After the temperature, unless the server was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1.
  logprobs: "processed",
  write(request: ServedRequest, adapter, stream) {
    const { prompt, media = [], images, params, promptLogprobs, topLogprobs = 0, topPromptLogprobs = 0 } = request;
    const mostLikely = Math.max(topLogprobs, topPromptLogprobs);
    const single = media.find(({ length }) => length === 1);
    // SGLang answers with the same tokens if it ignores such an image.
    if (single) {
      throw new UserError(`the image ${single.hash} has only one token, which SGLang does not support`, {
        hint: "use a larger image",
      });
    }
    // JSON.stringify omits undefined values.
    return {
      input_ids: Array.from(prompt),
      image_data: images,
      return_prompt_token_ids: images && true,
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
      logprob_start_len: promptLogprobs || topPromptLogprobs > 0 ? 0 : undefined,
      top_logprobs_num: mostLikely > 0 ? mostLikely : undefined,
      stream: stream || undefined,
    };
  },
  read(body, request) {
    if (request.media?.length) requireSamePrompt(request, body.prompt_token_ids, sameTokens);
    const reply = readReply(body, 0);
    const { input_token_logprobs: given, input_top_logprobs: top } = isObject(body.meta_info) ? body.meta_info : {};
    if (request.promptLogprobs && Array.isArray(given)) reply.promptLogprobs = readPrompt(given as Entry[], request);
    const { topPromptLogprobs: count = 0 } = request;
    if (count > 0 && Array.isArray(top)) {
      reply.topPromptLogprobs = (top as (Entry[] | null)[]).map((entries) => readTop((entries ?? []).slice(0, count)));
    }
    return reply;
  },
  openStream(request) {
    let seen = 0;
    return (event) => {
      if (seen === 0 && request.media?.length) requireSamePrompt(request, event.prompt_token_ids, sameTokens);
      const reply = readReply(event, seen);
      seen += reply.tokens.length;
      return reply;
    };
  },
};

const sameTokens =
  "serve the run's model folder, without --mm-process-config and SGLANG_MM_AVOID_RETOKENIZE=0; for Qwen2-VL, SGLang requires size.shortest_edge=3136 and size.longest_edge=1003520 in its preprocessor_config.json";

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

/** NaN for the tokens of images: SGLang replaces these by hashes, and reports the log-probabilities of another token. */
function readPrompt([, ...rest]: Entry[], { media = [] }: SampleRequest): Float32Array {
  const logprobs = rest.map(([logprob]) => logprob);
  const all = Float32Array.of(Number.NaN, ...toLogprobs(logprobs, "meta_info.input_token_logprobs"));
  for (const { at, length } of media) all.fill(Number.NaN, at, at + length);
  return all;
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
