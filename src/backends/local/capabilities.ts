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
  otherModels: true,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter", "merged"],
  images: false,
};

/** Sampled by an inference server instead, which has a copy of its own of all weights. */
export const capabilitiesWith = (kind: "vllm" | "sglang"): Capabilities => ({
  ...capabilities,
  engine: kind === "vllm" ? "local engine with a vLLM server" : "local engine with an SGLang server",
  sampleLogprobs: kind === "vllm" ? "raw" : "processed",
  sampling: capabilities.sampling.filter((name) => name !== "tempered_logprobs"),
  frozenSampler: { lora: true, full: true },
  images: false,
});
