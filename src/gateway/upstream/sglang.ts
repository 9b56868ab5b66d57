/** SGLang's own `/generate`: `input_ids` in, `meta_info.output_token_logprobs` out. */
import type { SampleRequest } from "../../backends/engine.ts";
import { isObject } from "../read-parameters.ts";
import { type Dialect, MissingTokens } from "./upstream-policy.ts";
import { stopReason } from "./vllm.ts";

/** `[log-probability, token id, text]` */
type Entry = [number, number, string | null];

export const sglang: Dialect = {
  path: "/generate",
  write({ prompt, params, topLogprobs = 0 }: SampleRequest) {
    return {
      input_ids: Array.from(prompt),
      sampling_params: {
        max_new_tokens: params.maxTokens,
        temperature: params.temperature,
        top_p: params.topP,
        top_k: params.topK,
        min_p: params.minP,
        ...(params.stopStrings.length > 0 ? { stop: params.stopStrings } : {}),
        ...(params.stopIds.length > 0 ? { stop_token_ids: params.stopIds } : {}),
        ...(params.ignoreEos ? { ignore_eos: true } : {}),
        // It takes 32 bits.
        sampling_seed: params.seed % 2 ** 31,
      },
      return_logprob: true,
      ...(topLogprobs > 0 ? { top_logprobs_num: topLogprobs } : {}),
    };
  },
  read(body) {
    const info = isObject(body.meta_info) ? body.meta_info : {};
    const { output_token_logprobs: entries, output_top_logprobs: top, finish_reason: reason } = info;
    if (!Array.isArray(entries)) throw new MissingTokens("its answer has no meta_info.output_token_logprobs");
    const version = Number(info.weight_version ?? "none");
    return {
      tokens: Int32Array.from(entries as Entry[], ([, token]) => token),
      logprobs: Float32Array.from(entries as Entry[], ([logprob]) => logprob),
      ...(Array.isArray(top) ? { topLogprobs: (top as Entry[][]).map(readTop) } : {}),
      stopReason: stopReason(isObject(reason) ? String(reason.type) : String(reason)),
      version: Number.isInteger(version) ? version : undefined,
    };
  },
};

const readTop = (entries: Entry[]) => ({
  tokens: Int32Array.from(entries, ([, token]) => token),
  logprobs: Float32Array.from(entries, ([logprob]) => logprob),
});
