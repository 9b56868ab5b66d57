/** `rllm.rollout` and the older `sampling`: number of rollouts and sampling parameters. */
import { z } from "zod";
import { count, notNegative, positive, section, share } from "./about.ts";

const temperature = notNegative.default(1).describe("Sampling temperature; 0 is greedy.");
const top_p = z.number().gt(0).max(1).default(1).describe("Nucleus sampling threshold (top-p); 1 is off.");
const top_k = count.default(-1).describe("Sample from the k most likely tokens; -1 is off.");
const min_p = share.default(0).describe("Drop tokens less likely than min_p times the most likely one; 0 is off.");

const sampling = { temperature, top_p, top_k, min_p };

/** Other sampling parameters parse, but `later` rejects them at start. */
const rolloutSampling = z
  .object({
    ...sampling,
    max_tokens: positive
      .default(2048)
      .describe("Maximum reply length in tokens.")
      .meta({ written: "$" + "{rllm.data.max_response_length}" }),
  })
  .catchall(z.unknown().meta({ later: "this sampling parameter is not supported yet" }))
  .prefault({});

export const rollout = section({
  n: positive.default(8).describe("Number of rollouts per task during training.").meta({
    note: "rLLM's documentation says it is only logged; in its code and in Hone it sets how many rollouts run.",
  }),
  n_val: positive.default(1).describe("Number of rollouts per task during validation."),
  train: rolloutSampling,
  val: rolloutSampling,
});

export const samplingBlock = section({
  train: section(sampling),
  val: section(sampling),
});
