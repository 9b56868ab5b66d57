/** What the local engine can do. */
import type { Capabilities } from "../engine.ts";

export const capabilities: Capabilities = {
  engine: "local",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  loraTargets: ["attn", "mlp", "unembed"],
  outputs: ["logprobs", "entropy", "values", "concentration", "targets", "most_likely", "draws", "scores"],
  sampling: [
    "top_p",
    "top_k",
    "min_p",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "tempered_logprobs",
    "abort",
    "tokens_streamed",
  ],
  multiplePolicies: true,
  otherModels: false,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter", "merged"],
};

/** Sampled by a vLLM server instead. */
export const capabilitiesWithServer: Capabilities = {
  ...capabilities,
  engine: "local engine with a vLLM server",
  adapters: ["lora", "none"],
  sampling: capabilities.sampling.filter((name) => name !== "tempered_logprobs"),
};
