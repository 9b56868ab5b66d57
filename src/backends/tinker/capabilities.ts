/** What training through a Tinker service can do, as data. */
import type { ServiceCapabilities } from "../../tinker-protocol/handshake.ts";
import type { Capabilities } from "../engine.ts";

/** @param otherModels whether the service may have other models, which are not trained */
export const engineCapabilities = (
  { exactLogprobs, imageTokens }: ServiceCapabilities,
  { otherModels }: { otherModels: boolean },
): Capabilities => ({
  engine: "tinker",
  // "processed" is the distribution at the sampling temperature; at temperature 1 that is the model's own.
  sampleLogprobs: exactLogprobs ? "raw" : "processed",
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
    "top_prompt_logprobs",
    "tempered_logprobs",
    "abort",
  ],
  multiplePolicies: true,
  otherModels,
  frozenSampler: { lora: true, full: false },
  exports: ["adapter"],
  images: imageTokens,
});
