/** The reply formats by the name that `rollout_engine.renderer_name` gives them. A format is detected by a text in the template. */
import { deepseek } from "./deepseek.ts";
import { type ReplyFormat, thinkTags } from "./format.ts";
import { gemma4, gemma4Result, gemma4Thinking } from "./gemma4.ts";
import { glm, glmEnds } from "./glm.ts";
import { harmony } from "./harmony.ts";
import { hermes } from "./hermes.ts";
import { deepseekV32, minimax } from "./invoke.ts";
import { kimiCallId, kimiK2 } from "./kimi-k2.ts";
import { granite, minimaxM1, nemotron, phi4 } from "./listed.ts";
import { llama3 } from "./llama3.ts";
import { mistral, mistralCallId, mistralThinking } from "./mistral.ts";
import { lfm2, llama4, olmo3 } from "./python-calls.ts";
import { qwen3Coder, seed } from "./qwen3-coder.ts";

interface NamedFormat extends ReplyFormat {
  /** A text of the templates whose models write this format. */
  detectedBy?: string;
}

/** In the order of detection: a template that has the texts of several formats belongs to the first one. */
export const formats = {
  gpt_oss: { ...harmony, detectedBy: "<|channel|>" },
  gemma4: {
    detectedBy: "<|tool_call>",
    thinking: gemma4Thinking,
    calls: gemma4,
    ends: [gemma4Result],
    opensNext: [gemma4Result],
  },
  minimax_m2: { detectedBy: "<minimax:tool_call>", thinking: thinkTags, calls: minimax },
  deepseek_v32: { detectedBy: "｜DSML｜", thinking: thinkTags, calls: deepseekV32 },
  deepseek_v3: { detectedBy: "<｜tool▁calls▁begin｜>", thinking: thinkTags, calls: deepseek },
  kimi_k2: { detectedBy: "<|tool_calls_section_begin|>", thinking: thinkTags, calls: kimiK2, callId: kimiCallId },
  seed_oss: { detectedBy: "<seed:tool_call>", thinking: { open: "<seed:think>", close: "</seed:think>" }, calls: seed },
  glm: { detectedBy: "<arg_key>", thinking: thinkTags, calls: glm, ends: glmEnds, opensNext: glmEnds },
  qwen3_coder: { detectedBy: "<function=", thinking: thinkTags, calls: qwen3Coder },
  nemotron: { detectedBy: "<TOOLCALL>", thinking: thinkTags, calls: nemotron },
  lfm2: { detectedBy: "<|tool_call_start|>", thinking: thinkTags, calls: lfm2 },
  olmo3: { detectedBy: "<function_calls>", thinking: thinkTags, calls: olmo3 },
  minimax_m1: { detectedBy: "<tool_calls>", calls: minimaxM1 },
  phi4: { detectedBy: "<|/tool_call|>", thinking: thinkTags, calls: phi4 },
  granite: { detectedBy: "<|tool_call|>", thinking: thinkTags, calls: granite },
  mistral: { detectedBy: "[TOOL_CALLS]", thinking: mistralThinking, calls: mistral, callId: mistralCallId },
  llama4: { detectedBy: "<|header_start|>", calls: llama4 },
  qwen3: { detectedBy: "<tool_call>", thinking: thinkTags, calls: hermes },
  llama3: { detectedBy: "<|start_header_id|>", calls: llama3, ends: ["<|eom_id|>"] },
} as const satisfies Record<string, NamedFormat>;

/**
 * How a model's replies are parsed.
 *
 * @param template the model's own
 * @param withTools the template that replaces it if tools are offered
 */
export function detectFormat(template: string, withTools = template): ReplyFormat {
  const found = (Object.values(formats) as NamedFormat[]).find(({ detectedBy = "" }) => withTools.includes(detectedBy));
  // A model of a family that can think may have been trained not to: then its template has no mark of the thinking.
  const marks = [found?.thinking, thinkTags, mistralThinking].filter((each) => each !== undefined);
  return { ...found, thinking: marks.find(({ close }) => template.includes(close)) };
}
