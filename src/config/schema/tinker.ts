/** Root keys of the Tinker service, and `rollout_engine`. */
import { z } from "zod";
import { off, optionalText, section } from "./about.ts";

export const tinkerKeys = {
  tinker_base_url: optionalText
    .describe(
      "URL of the Tinker service; null uses TINKER_BASE_URL, else the hosted service if TINKER_API_KEY is set, else Hone's own service in this process.",
    )
    .meta({ backends: ["tinker"] }),
  fuse_forward_backward_and_optim_step: off
    .describe("Send the optimizer step without waiting for the response to the forward-backward pass.")
    .meta({ backends: ["tinker"], instead: "the default: other engines have no network round trip to save" }),
};

/** The renderers of `src/chat/templates/renderers.ts`, in its order. */
export const rendererNames = [
  ...[
    "plain",
    "hermes",
    "qwen",
    "deepseek_r1",
    "gemma",
    "gpt_oss",
    "gemma4",
    "minimax_m2",
    "deepseek_v32",
    "deepseek_v3",
  ],
  ...[
    "kimi_k2",
    "seed_oss",
    "glm",
    "qwen3_coder",
    "nemotron",
    "lfm2",
    "olmo3",
    "minimax_m1",
    "phi4",
    "granite",
    "mistral",
  ],
  ...["llama4", "qwen3", "llama3"],
];

export const rolloutEngine = section({
  reasoning_effort: z
    .enum(["low", "medium", "high"])
    .default("medium")
    .describe("How much the model should think, for chat templates that read it."),
  accumulate_reasoning: off.describe(
    "Keep the thinking of earlier replies in the prompt; same as rllm.accumulate_reasoning.",
  ),
  disable_thinking: off.describe("Request replies without thinking; same as rllm.disable_thinking."),
  renderer_name: optionalText
    .describe(
      "How replies are parsed, for plain and hermes also how messages are written: a name, or a file that exports defineRenderer. null detects it from the model's own chat template.",
    )
    .meta({ options: rendererNames, orModule: true }),
  bypass_render_with_parser: off
    .describe("Has no effect: Hone has only one way to convert messages to tokens.")
    .meta({ neutral: [true], note: "It selects one of two renderers in rLLM." }),
});
