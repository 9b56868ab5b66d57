/** Turns the prompt of a model call into tokens. */
import type { Conversation, Turn } from "../../chat/conversations/conversation.ts";
import { type Blind, prepareImages, type Vision } from "../../chat/images/prepare-images.ts";
import type { ChatMessage } from "../../chat/messages.ts";
import { TextTooLong } from "../../chat/tokens/token-bounds.ts";
import type { Chat } from "../../chat/types.ts";
import { mostPromptTokens, promptTooLong } from "./sample-limits.ts";
import type { GenerateRequest, SamplingLimits } from "./types.ts";

export interface BegunTurn extends Turn {
  messages: readonly ChatMessage[];
}

export interface BeginTurnOptions {
  chat: Chat;
  limits: SamplingLimits;
  vision: Vision | Blind;
  conversation: Conversation;
  /** Whether tokens continue those of an earlier call. */
  continuesCall: (tokens: Int32Array) => boolean;
  signal: AbortSignal;
}

/** @throws RolloutEnded when the prompt is longer than the limits */
export async function beginTurn(
  { prompt, params }: GenerateRequest,
  { chat, limits, vision, conversation, continuesCall, signal }: BeginTurnOptions,
): Promise<BegunTurn> {
  const bounds = { mostTokens: mostPromptTokens(limits, params.budget), signal };
  try {
    if ("messages" in prompt) {
      const { messages, images } = await prepareImages(prompt.messages, vision, signal);
      return { ...(await conversation.beginLater(messages, params, { ...bounds, images })), messages };
    }
    const tokens =
      "tokens" in prompt
        ? prompt.tokens
        : await chat.encodeLater(prompt.text, { addSpecial: prompt.addSpecial, ...bounds });
    return {
      prompt: tokens,
      messages: [],
      starts: continuesCall(tokens) ? undefined : "raw_prompt",
      record: (sample) => ({
        content: chat.decode(sample.tokens, { skipSpecial: true }),
        toolCalls: [],
        problems: [],
      }),
    };
  } catch (error) {
    if (!(error instanceof TextTooLong)) throw error;
    throw promptTooLong(`at least ${error.leastTokens}`, limits);
  }
}
