/** The capabilities of the local engine. */
import type { Capabilities } from "../engine.ts";

export const capabilities: Capabilities = {
  engine: "local",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  loraTargets: ["attn", "mlp", "experts", "unembed"],
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
  images: true,
  trainsVision: true,
  routerReplay: ["R2"],
};

const denseTargets = capabilities.loraTargets.filter((target) => target !== "experts");

/** With several training processes; another process samples from its own copy of the weights. */
export const shardedCapabilities: Capabilities = {
  ...capabilities,
  engine: "local engine in several processes",
  outputs: capabilities.outputs.filter((name) => name !== "most_likely" && name !== "draws"),
  frozenSampler: { lora: true, full: true },
  loraTargets: denseTargets,
  trainsVision: false,
  routerReplay: [],
};

/** With an inference server, which samples from its own copy of all weights. */
export const capabilitiesWith = (kind: "vllm" | "sglang", trainer = capabilities): Capabilities => ({
  ...trainer,
  engine: `${trainer.engine} with ${kind === "vllm" ? "a vLLM" : "an SGLang"} server`,
  sampleLogprobs: kind === "vllm" ? "raw" : "processed",
  sampling: trainer.sampling.filter((name) => name !== "tempered_logprobs"),
  frozenSampler: { lora: true, full: true },
  loraTargets: denseTargets,
  routerReplay: trainer.routerReplay?.length && kind === "vllm" ? ["R2", "R3"] : (trainer.routerReplay ?? []),
  // Servers keep the features of images when weights change.
  trainsVision: false,
});
