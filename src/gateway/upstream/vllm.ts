/** vLLM's `/v1/completions` with token ids: `prompt` as ids in, `token_ids` out (`return_token_ids`). */
import type { SampleRequest } from "../../backends/engine.ts";
import { isObject } from "../read-parameters.ts";
import { type Dialect, MissingTokens, type UpstreamReply } from "./upstream-policy.ts";

export const vllm: Dialect = {
  path: "/v1/completions",
  write({ prompt, params, topLogprobs = 0 }: SampleRequest, model, stream) {
    return {
      ...(model === undefined ? {} : { model }),
      prompt: Array.from(prompt),
      max_tokens: params.maxTokens,
      temperature: params.temperature,
      top_p: params.topP,
      top_k: params.topK,
      min_p: params.minP,
      ...(params.stopStrings.length > 0 ? { stop: params.stopStrings } : {}),
      ...(params.stopIds.length > 0 ? { stop_token_ids: params.stopIds } : {}),
      ...(params.ignoreEos ? { ignore_eos: true } : {}),
      seed: params.seed,
      // 0: of the sampled tokens alone.
      logprobs: topLogprobs,
      return_token_ids: true,
      // Tokens are named by id where they are keys, so that alternatives can be told apart.
      ...(topLogprobs > 0 ? { return_tokens_as_token_ids: true } : {}),
      ...(stream ? { stream } : {}),
    };
  },
  read: (body, { topLogprobs = 0 }) => readChoice(body, topLogprobs > 0),
  readChunk: (chunk) => {
    if (isObject(chunk.error)) throw new Error(String(chunk.error.message));
    return readChoice(chunk, true);
  },
};

function readChoice(body: Record<string, unknown>, withTop: boolean): UpstreamReply {
  const [choice] = Array.isArray(body.choices) ? body.choices : [];
  if (!isObject(choice)) throw new Error("the inference server's answer has no choices");
  const { token_ids: ids, logprobs, finish_reason: reason } = choice;
  if (!Array.isArray(ids)) throw new MissingTokens("its choices have no token_ids");
  const given = isObject(logprobs) && Array.isArray(logprobs.token_logprobs) ? logprobs.token_logprobs : undefined;
  if (given === undefined) throw new MissingTokens("its choices have no logprobs.token_logprobs");
  const top = isObject(logprobs) && Array.isArray(logprobs.top_logprobs) && withTop ? logprobs.top_logprobs : undefined;
  return {
    tokens: Int32Array.from(ids as number[]),
    logprobs: Float32Array.from(given as number[]),
    ...(top?.every(isObject) ? { topLogprobs: top.map(readTop) } : {}),
    stopReason: reason === null || reason === undefined ? undefined : stopReason(String(reason)),
    version: typeof body.weight_version === "number" ? body.weight_version : undefined,
  };
}

/** @param alternatives `{ "token_id:17": -0.5, ... }` */
function readTop(alternatives: Record<string, unknown>) {
  const ranked = Object.entries(alternatives)
    .map(([name, logprob]) => [Number(name.replace("token_id:", "")), Number(logprob)] as const)
    .sort(([, left], [, right]) => right - left);
  return {
    tokens: Int32Array.from(ranked, ([token]) => token),
    logprobs: Float32Array.from(ranked, ([, logprob]) => logprob),
  };
}

export function stopReason(reason: string): "stop" | "length" | "aborted" {
  if (reason === "stop" || reason === "length") return reason;
  if (reason === "abort") return "aborted";
  throw new Error(`the inference server ended a reply for the unknown reason ${JSON.stringify(reason)}`);
}
