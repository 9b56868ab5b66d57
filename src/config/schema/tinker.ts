/** Keys at the root that speak of the Tinker service, and `rollout_engine`. */
import { z } from "zod";
import { text } from "./about.ts";

export const tinkerKeys = {
  tinker_base_url: text
    .nullable()
    .default(null)
    .describe(
      "Address of the Tinker service; null is the hosted one where an API key is set, else Hone's own in process.",
    )
    .meta({ backends: ["tinker"] }),
  fuse_forward_backward_and_optim_step: z
    .boolean()
    .default(false)
    .describe("Send the optimizer step without waiting for the gradients' answer.")
    .meta({ backends: ["tinker"], instead: "nothing: other engines have no round trip to save" }),
};

/** Of `src/chat/renderers.ts`, in its order. */
export const rendererNames = ["plain", "hermes", "qwen", "qwen3", "llama3", "mistral", "deepseek_r1", "gemma"];

export const rolloutEngine = z
  .strictObject({
    reasoning_effort: z
      .enum(["low", "medium", "high"])
      .default("medium")
      .describe("How much the model shall think, for chat templates that ask."),
    accumulate_reasoning: z
      .boolean()
      .default(false)
      .describe("Keep the thinking of earlier replies in the prompt; the same as rllm.accumulate_reasoning."),
    disable_thinking: z
      .boolean()
      .default(false)
      .describe("Ask for replies without thinking; the same as rllm.disable_thinking."),
    renderer_name: text
      .nullable()
      .default(null)
      .describe("How messages become tokens and replies are read; null goes by the model's own chat template.")
      .meta({ options: rendererNames }),
    bypass_render_with_parser: z
      .boolean()
      .default(false)
      .describe("Has no meaning here: there is one way from messages to tokens.")
      .meta({ neutral: [true], note: "In rLLM it chooses between two renderers." }),
  })
  .prefault({});
