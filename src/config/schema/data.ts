/** `data`, and `rllm.data` with the same sizes under the names that scripts for every backend use. */
import { z } from "zod";
import { count, hosts, off, on, positive, section, text } from "./about.ts";

const sizes = {
  max_prompt_length: positive
    .default(2048)
    .describe("Maximum prompt length in tokens; a longer prompt ends the rollout.")
    .meta({ note: "rLLM's tinker.yaml has 30720; Hone follows rLLM's documentation (2048)." }),
  max_response_length: positive
    .default(2048)
    .describe("Maximum reply length in tokens.")
    .meta({ note: "rLLM's base.yaml has 30720; Hone follows rLLM's documentation (2048)." }),
  train_batch_size: positive
    .default(64)
    .describe("Number of tasks per training step.")
    .meta({ note: "rLLM's tinker.yaml has 32; Hone follows rLLM's documentation (64)." }),
  val_batch_size: count
    .min(-1)
    .refine((size) => size !== 0, "must be -1 or at least 1")
    .default(32)
    .describe("Number of tasks validated at a time; -1 validates all at once."),
};

export const rllmData = section(sizes);

export const data = section({
  ...sizes,
  shuffle: on.describe("Reshuffle the training data every epoch."),
  train_files: z
    .union([text, z.array(text)])
    .nullable()
    .default(null)
    .describe(
      "The rows of hone sft or the pairs of hone dpo: a .jsonl or .parquet file, or hub:organization/name; several are read one after the other.",
    ),
  val_files: z
    .union([text, z.array(text)])
    .nullable()
    .default(null)
    .describe("Rows or pairs to measure the loss on every rllm.trainer.test_freq steps, as in train_files."),
  max_length: positive
    .nullable()
    .default(null)
    .describe("Maximum length of a row in tokens; null is training.max_length."),
  truncation: z
    .enum(["error", "right", "left", "drop"])
    .default("error")
    .describe(
      "Rows that are longer: error stops before training, right cuts off their end, left their beginning, drop leaves them out. Cut and dropped rows are counted.",
    ),
  image_hosts: hosts.describe(
    "Networks from which images of the data are fetched although they are not public, such as 127.0.0.1 or 10.1.0.0/16. Images at public addresses are always fetched.",
  ),
  mixed_mm_data: off.describe(
    "The data contains rows with images and rows without. A model that reads only text is then refused at the start.",
  ),
});
