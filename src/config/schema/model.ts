/** `model`: what is trained. */
import { z } from "zod";
import { count, text } from "./about.ts";

export const model = z
  .strictObject({
    name: text.default("Qwen/Qwen3-8B").describe("An alias, a Hugging Face directory, a .gguf file or a hub id.").meta({
      note: "The local backend's default is smollm2-135m-instruct, which needs no model hub and learns on two CPU cores.",
    }),
    lora_rank: count.min(0).default(32).describe("LoRA rank; 0 trains all weights."),
    lora_alpha: z.number().gt(0).default(32).describe("LoRA scale is lora_alpha / lora_rank."),
    train_unembed: z.boolean().default(true).describe("LoRA on the output embedding.").meta({
      note: "The local backend's default is false: in small models the output embedding is the input embedding too.",
    }),
    train_attn: z.boolean().default(true).describe("LoRA on attention."),
    train_mlp: z.boolean().default(true).describe("LoRA on the MLPs."),
    processor: text
      .nullable()
      .default(null)
      .describe("Processor of a model that takes images; null is the model's own.")
      .meta({ later: "images are not understood yet" }),
  })
  .prefault({});
