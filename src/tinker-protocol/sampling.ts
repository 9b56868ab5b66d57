/** The message of a finished sample request, as plain values. */
import { message, toPlain } from "./schema.ts";
import { bytesOf, float32sOf, int32sOf, type TensorMessage } from "./tensors.ts";

/** `[length, k]` row by row; empty cells are token 0 with `emptyLogprob`. */
export interface TopLogprobs {
  tokens: Int32Array;
  logprobs: Float32Array;
  k: number;
  length: number;
}

export const emptyLogprob = -99999;

interface SampledSequence {
  stopReason: "stop" | "length";
  tokens: Int32Array;
  logprobs: Float32Array;
  top?: TopLogprobs | undefined;
}

export interface SampleResponse {
  sequences: SampledSequence[];
  /** `[P]`, NaN where there is none. */
  promptLogprobs?: Float32Array | undefined;
  topPromptLogprobs?: TopLogprobs | undefined;
  /** `[P - 1, K]`, in the layout of the request. */
  targetPromptLogprobs?: TensorMessage | undefined;
  /** `[P - 1, K]` each. */
  promptAltTokens?: { tokens: TensorMessage; logprobs: TensorMessage } | undefined;
}

interface TopMessage {
  token_ids?: Uint8Array;
  logprobs?: Uint8Array;
  k?: number;
  length?: number;
}
interface ResponseMessage {
  sequences?: {
    stop_reason?: number;
    tokens?: Uint8Array;
    logprobs?: Uint8Array;
    topk_sampled_logprobs?: TopMessage;
  }[];
  prompt_logprobs?: Uint8Array;
  topk_prompt_logprobs?: TopMessage;
}

const responseType = message("SampleResponse");
const stopReasons = ["stop", "length"] as const;

const encodeTop = ({ tokens, logprobs, k, length }: TopLogprobs): TopMessage => ({
  token_ids: bytesOf(tokens),
  logprobs: bytesOf(logprobs),
  k,
  length,
});

export function encodeSampleResponse(response: SampleResponse): Uint8Array {
  const { sequences, promptLogprobs, topPromptLogprobs, targetPromptLogprobs, promptAltTokens } = response;
  const plain = {
    sequences: sequences.map(({ stopReason, tokens, logprobs, top }) => ({
      stop_reason: stopReasons.indexOf(stopReason),
      tokens: bytesOf(tokens),
      logprobs: bytesOf(logprobs),
      topk_sampled_logprobs: top && encodeTop(top),
    })),
    prompt_logprobs: promptLogprobs && bytesOf(promptLogprobs),
    topk_prompt_logprobs: topPromptLogprobs && encodeTop(topPromptLogprobs),
    target_prompt_logprobs: targetPromptLogprobs,
    prompt_alt_tokens: promptAltTokens,
  };
  return responseType.encode(responseType.create(plain)).finish();
}

const decodeTop = ({ token_ids, logprobs, k = 0, length = 0 }: TopMessage): TopLogprobs => ({
  tokens: int32sOf(token_ids),
  logprobs: float32sOf(logprobs),
  k,
  length,
});

/** Decodes the parts that an engine requests: sequences and the prompt's log-probabilities. */
export function decodeSampleResponse(bytes: Uint8Array): SampleResponse {
  const plain = responseType.toObject(responseType.decode(bytes), toPlain) as ResponseMessage;
  return {
    sequences: (plain.sequences ?? []).map(({ stop_reason = 0, tokens, logprobs, topk_sampled_logprobs }) => ({
      stopReason: stopReasons[stop_reason] ?? "stop",
      tokens: int32sOf(tokens),
      logprobs: float32sOf(logprobs),
      top: topk_sampled_logprobs && decodeTop(topk_sampled_logprobs),
    })),
    promptLogprobs: plain.prompt_logprobs && float32sOf(plain.prompt_logprobs),
    topPromptLogprobs: plain.topk_prompt_logprobs && decodeTop(plain.topk_prompt_logprobs),
  };
}
