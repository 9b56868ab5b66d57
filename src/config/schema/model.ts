/** `model`: the model to train and its LoRA settings. */
import { z } from "zod";
import { count, text } from "./about.ts";

export const model = z
  .strictObject({
    name: text
      .default("Qwen/Qwen3-8B")
      .describe("Model: an alias, a Hugging Face directory, a .gguf file or a hub id.")
      .meta({
        note: "The local backend's default is smollm2-135m-instruct, which needs no model hub and trains on two CPU cores.",
      }),
    lora_rank: count.min(0).max(16_384).default(32).describe("LoRA rank; 0 trains all weights."),
    lora_alpha: z.number().gt(0).default(32).describe("LoRA alpha; the LoRA scale is lora_alpha / lora_rank."),
    train_unembed: z.boolean().default(true).describe("Apply LoRA to the output embedding.").meta({
      note: "The local backend's default is false, because small models share the output embedding with the input embedding.",
    }),
    train_attn: z.boolean().default(true).describe("Apply LoRA to the attention layers."),
    train_mlp: z.boolean().default(true).describe("Apply LoRA to the MLP layers."),
    processor: text
      .nullable()
      .default(null)
      .describe("Processor of a model that accepts images; null is the model's own.")
      .meta({ later: "images are not supported yet" }),
  })
  .prefault({});
