/** vLLM's `/inference/v1/generate`: token ids in and out, with the version of the weights for each token. */
import { isObject } from "../../../is-object.ts";
import type { SampleRequest } from "../../engine.ts";
import { requireSamePrompt } from "../requests/served-images.ts";
import { type Dialect, MissingTokens, readVersions, type ServerReply, toLogprobs } from "./dialect.ts";
import { mostLikely, onlyChoice, readPrompt, readRouting, samplingFields } from "./vllm-completions.ts";

export const vllmGenerate: Dialect = {
  path: "/inference/v1/generate",
  images: { placeholders: "first", transparency: true },
  logprobs: "raw",
  write(request, model, stream, id) {
    return {
      request_id: id,
      model,
      token_ids: Array.from(request.prompt),
      content_parts: request.images?.map((url) => ({ type: "image_url", url })),
      return_token_ids: request.images && true,
      sampling_params: {
        ...samplingFields(request),
        top_k: Math.max(0, request.params.topK),
        // The server must decode text only for stop strings.
        detokenize: request.params.stopStrings.length > 0,
      },
      stream: stream || undefined,
    };
  },
  read(body, request) {
    if (request.media?.length) requireSamePrompt(request, body.prompt_token_ids, sameProcessor);
    return readChoice(body, request);
  },
  openStream(request) {
    // The first event contains the prompt.
    let isFirst = true;
    return (event) => {
      if (isFirst && request.media?.length) requireSamePrompt(request, event.prompt_token_ids, sameProcessor);
      isFirst = false;
      return readChoice(event, request);
    };
  },
  abort: (ids) => ({
    path: "/inference/v1/abort_requests",
    body: { request_ids: ids.map((id) => `generate-tokens-${id}`) },
  }),
};

const sameProcessor =
  "serve the run's model folder with its own preprocessor_config.json, without --mm-processor-kwargs";

function readChoice(body: Record<string, unknown>, request: SampleRequest): ServerReply {
  const { topLogprobs: topCount = 0 } = request;
  const { choice, ids, about, stopReason } = onlyChoice(body);
  const content = Array.isArray(about.content) ? about.content : undefined;
  if (content === undefined && ids.length > 0) throw new MissingTokens("its choices have no logprobs.content");
  const entries = (content ?? []).filter(isObject);
  const reply: ServerReply = {
    tokens: new Int32Array(ids),
    logprobs: toLogprobs(
      entries.map(({ logprob }) => logprob),
      "logprobs.content",
    ),
    stopReason,
    versions: readVersions(choice.weight_versions),
  };
  if (topCount > 0) reply.topLogprobs = entries.map(({ top_logprobs: top }) => readTop(top, topCount));
  return { ...reply, ...readPrompt(body.prompt_logprobs, request), ...readRouting(choice, request, stopReason) };
}

/** @param given the most likely tokens, and the sampled one if it is not among them; vLLM 0.24 has the id only in `token` */
function readTop(given: unknown, count: number) {
  const entries = (Array.isArray(given) ? given : []).filter(isObject).map(({ token_id: id, token, logprob }) => ({
    token: Number(id ?? String(token).replace("token_id:", "")),
    logprob: Number(logprob),
  }));
  return mostLikely(entries, count);
}
