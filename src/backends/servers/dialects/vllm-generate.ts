/** vLLM's `/inference/v1/generate`: token ids in and out, with the version of the weights for each token. */
import { isObject } from "../../../is-object.ts";
import type { SampleRequest } from "../../engine.ts";
import { requireSamePrompt } from "../requests/served-images.ts";
import { type Dialect, MissingTokens, readVersions, type ServerReply, toLogprobs, toStopReason } from "./dialect.ts";
import { readPrompt, readRouting, samplingFields } from "./vllm-completions.ts";

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
  const [choice] = Array.isArray(body.choices) ? body.choices : [];
  if (!isObject(choice)) throw new Error("the inference server's answer has no choices");
  const { token_ids: ids, logprobs, finish_reason: reason } = choice;
  if (!Array.isArray(ids)) throw new MissingTokens("its choices have no token_ids");
  const content = isObject(logprobs) && Array.isArray(logprobs.content) ? logprobs.content : undefined;
  if (content === undefined && ids.length > 0) throw new MissingTokens("its choices have no logprobs.content");
  const entries = (content ?? []).filter(isObject);
  const reply: ServerReply = {
    tokens: new Int32Array(ids as number[]),
    logprobs: toLogprobs(
      entries.map(({ logprob }) => logprob),
      "logprobs.content",
    ),
    stopReason: reason === null || reason === undefined ? undefined : toStopReason(String(reason)),
    versions: readVersions(choice.weight_versions),
  };
  if (topCount > 0) reply.topLogprobs = entries.map(({ top_logprobs: top }) => readTop(top, topCount));
  return { ...reply, ...readPrompt(body.prompt_logprobs, request), ...readRouting(choice, request, reply.stopReason) };
}

/** @param given the most likely tokens, and the sampled one if it is not among them; vLLM 0.24 has the id only in `token` */
function readTop(given: unknown, count: number) {
  const ranked = (Array.isArray(given) ? given.filter(isObject) : [])
    .sort((left, right) => Number(right.logprob) - Number(left.logprob))
    .slice(0, count);
  return {
    tokens: Int32Array.from(ranked, ({ token_id: id, token }) => Number(id ?? String(token).replace("token_id:", ""))),
    logprobs: Float32Array.from(ranked, ({ logprob }) => Number(logprob)),
  };
}
