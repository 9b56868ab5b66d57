/** What training through a Tinker service can do, as data. */
import type { Capabilities } from "../engine.ts";

export const capabilities: Capabilities = {
  engine: "tinker",
  // Of the distribution at the sampling temperature; at temperature 1 that is the model's own.
  sampleLogprobs: "processed",
  adapters: ["lora", "none"],
  loraTargets: ["attn", "mlp", "unembed"],
  outputs: ["logprobs", "targets"],
  sampling: [
    "top_p",
    "top_k",
    "stop_ids",
    "stop_strings",
    "seed",
    "prompt_logprobs",
    "top_logprobs",
    "tempered_logprobs",
    "abort",
  ],
  multiplePolicies: true,
  otherModels: false,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter"],
  images: false,
};

/** Hone's own service returns raw log-probabilities on request, and says which tokens stand for an image. */
export const honeCapabilities: Capabilities = { ...capabilities, sampleLogprobs: "raw", images: true };
