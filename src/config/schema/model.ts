import { aboveZero, count, off, on, optionalText, section, text } from "./about.ts";

export const model = section({
  name: text
    .default("Qwen/Qwen3-8B")
    .describe("Model: an alias, a Hugging Face directory, a .gguf file or a hub id.")
    .meta({
      note: "The local backend's default is smollm2-135m-instruct, which needs no model hub and trains on two CPU cores.",
    }),
  lora_rank: count.min(0).max(16_384).default(32).describe("LoRA rank; 0 trains all weights."),
  lora_alpha: aboveZero.default(32).describe("LoRA alpha; the LoRA scale is lora_alpha / lora_rank."),
  train_unembed: on.describe("Apply LoRA to the output embedding.").meta({
    note: "The local backend's default is false, because small models share the output embedding with the input embedding.",
  }),
  train_attn: on.describe("Apply LoRA to the attention layers."),
  train_mlp: on.describe("Apply LoRA to the MLP layers."),
  train_experts: off.describe("Also apply LoRA to the experts of a mixture of experts; false leaves them as they are."),
  train_vision: off.describe(
    "Also train the vision part of a model that accepts images: LoRA on its layers, or all of its weights.",
  ),
  processor: optionalText.describe(
    "Folder or hub id with the image processor of a model that accepts images; null is the model's own.",
  ),
});
