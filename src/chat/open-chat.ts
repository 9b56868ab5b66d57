/** Opens a model folder's `Chat` with the settings of the configuration. */
import type { Config } from "../config/schema.ts";
import { loadChat } from "./chat.ts";
import type { Chat } from "./types.ts";

/**
 * @param log called for settings that have no effect with this model
 * @throws UserError as `loadChat` does
 */
export function openChat(directory: string, { rllm, rollout_engine }: Config, log?: (line: string) => void): Chat {
  return loadChat(directory, {
    rendererName: rollout_engine.renderer_name,
    disableThinking: rllm.disable_thinking,
    accumulateReasoning: rllm.accumulate_reasoning,
    reasoningEffort: rollout_engine.reasoning_effort,
    log,
  });
}
