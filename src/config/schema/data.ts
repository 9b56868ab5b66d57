/** `data`, and `rllm.data` with the same figures under the names that scripts for every backend use. */
import { z } from "zod";
import { count, text } from "./about.ts";

const sizes = {
  max_prompt_length: count
    .min(1)
    .default(2048)
    .describe("Longest prompt in tokens; a longer one ends the rollout.")
    .meta({ note: "rLLM's tinker.yaml says 30720; the document says 2048, as Hone does." }),
  max_response_length: count
    .min(1)
    .default(2048)
    .describe("Longest reply in tokens.")
    .meta({ note: "rLLM's base.yaml says 30720; the document says 2048, as Hone does." }),
  train_batch_size: count
    .min(1)
    .default(64)
    .describe("Tasks per training step.")
    .meta({ note: "rLLM's tinker.yaml says 32; the document says 64, as Hone does." }),
  val_batch_size: count
    .min(-1)
    .refine((size) => size !== 0, "-1 or at least 1")
    .default(32)
    .describe("Tasks validated at a time; -1 takes all at once."),
};

export const rllmData = z.strictObject(sizes).prefault({});

export const data = z
  .strictObject({
    ...sizes,
    shuffle: z.boolean().default(true).describe("Shuffle the training data anew each epoch."),
    train_files: z
      .union([text, z.array(text)])
      .nullable()
      .default(null)
      .describe("Training data by file or hub id, in place of the script's own.")
      .meta({ later: "the script's own data is what is trained on yet" }),
    val_files: z
      .union([text, z.array(text)])
      .nullable()
      .default(null)
      .describe("Validation data by file or hub id, in place of the script's own.")
      .meta({ later: "the script's own data is what is measured on yet" }),
    mixed_mm_data: z
      .boolean()
      .default(false)
      .describe("The data has rows with images and rows without.")
      .meta({ later: "images are not understood yet" }),
  })
  .prefault({});
