/** The capabilities of verl's workers together with inference servers. */
import type { Capabilities } from "../engine.ts";

export const capabilities: Capabilities = {
  engine: "verl",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  loraTargets: ["attn", "mlp"],
  outputs: ["logprobs", "entropy", "values", "concentration"],
  sampling: [
    "top_p",
    "top_k",
    "min_p",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "abort",
    "tokens_streamed",
  ],
  multiplePolicies: false,
  images: true,
  otherModels: false,
  frozenSampler: { lora: true, full: true },
  exports: ["adapter", "merged"],
};
