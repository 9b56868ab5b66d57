/** One model call: encodes its prompt within the limits, and checks, answers and records its sample. */

import { RolloutEnded } from "../../agents/control-flow.ts";
import type { Sample, SamplingParams } from "../../backends/engine.ts";
import type { Conversation, Turn } from "../../chat/conversations/conversation.ts";
import { type Blind, prepareImages, type Vision } from "../../chat/images/prepare-images.ts";
import type { ChatMessage, ParsedReply } from "../../chat/messages.ts";
import { TextTooLong } from "../../chat/tokens/token-bounds.ts";
import type { Chat } from "../../chat/types.ts";
import type { LengthLimit, Step } from "../../trajectories/types.ts";
import type { Generated, GenerateParams, GenerateRequest, SamplingDefaults, SamplingLimits } from "./types.ts";

export interface BegunTurn extends Turn {
  messages: readonly ChatMessage[];
}

interface BeginTurnOptions {
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
  const bounds = { maxPromptTokens: maxPromptTokens(limits, params.budget), signal };
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

/**
 * The most tokens of a reply to a prompt of this length; at least 1.
 * @param spent tokens of the response so far, in earlier turns
 * @throws RolloutEnded when no token is left within the limits
 */
export function responseRoom(promptLength: number, limits: SamplingLimits, spent = 0): number {
  const { maxPromptLength, maxResponseLength } = limits;
  const maxLength = longestSequence(limits);
  if (spent >= maxResponseLength) {
    throw new RolloutEnded(
      "max_response_length_exceeded",
      `${spent} tokens since the first prompt; data.max_response_length is ${maxResponseLength} for all turns together`,
    );
  }
  const room = Math.min(maxResponseLength - spent, maxLength - promptLength);
  // Tokens within the response's budget do not count as prompt.
  if (promptLength - spent <= maxPromptLength && room >= 1) return room;
  throw promptTooLong(`${promptLength}`, limits);
}

export function toSamplingParams(
  room: number,
  params: GenerateParams,
  defaults: SamplingDefaults,
  seed: number,
): SamplingParams {
  const complete: SamplingParams = {
    maxTokens: Math.min(params.maxTokens ?? room, room),
    temperature: params.temperature ?? defaults.temperature,
    topP: params.topP ?? defaults.topP,
    topK: params.topK ?? defaults.topK,
    minP: params.minP ?? defaults.minP,
    stopIds: params.stopIds ?? [],
    stopStrings: params.stop ?? [],
    seed: params.seed ?? seed,
  };
  if (params.ignoreEos !== undefined) complete.ignoreEos = params.ignoreEos;
  return complete;
}

/** @throws Error when the engine's answer is not a valid sample, which must never be trained on */
export function checkSample({ tokens, logprobs }: Sample): void {
  if (logprobs.length !== tokens.length) {
    throw new Error(`the engine answered ${tokens.length} tokens with ${logprobs.length} log-probabilities`);
  }
  const token = tokens.find((id) => id < 0);
  if (token !== undefined) throw new Error(`the engine answered the token id ${token}`);
  const logprob = logprobs.find((value) => Number.isNaN(value) || value > 1e-3);
  if (logprob !== undefined) throw new Error(`the engine answered the log-probability ${logprob}`);
}

/** @param text the reply without special tokens */
export function toGenerated(
  { prompt, messages, record }: BegunTurn,
  sample: Sample,
  text: string,
  params: Generated["params"],
): Generated {
  const { tokens, logprobs, stopReason, policyVersion, topLogprobs } = sample;
  const reply = record(sample);
  const generated: Generated = {
    promptTokens: prompt,
    messages,
    tokens,
    logprobs,
    stopReason,
    policyVersion,
    text,
    reply,
    params,
  };
  if (topLogprobs !== undefined) generated.topLogprobs = topLogprobs;
  return generated;
}

export function toStep(
  { params: { tools, maxTokens }, compacted }: GenerateRequest,
  { prompt, media, messages, starts }: BegunTurn,
  { tokens, logprobs, processed, stopReason, policyVersion, tokenVersions, routing }: Sample,
  { text, reply, params }: Generated,
  limits: SamplingLimits,
): Step {
  const step: Step = {
    promptTokens: prompt,
    tokens,
    logprobs,
    policyVersion,
    stopReason,
    text,
    messages: messages.map((message) => ({ ...message })),
    reply,
    reward: null,
  };
  if (media) step.media = media;
  if (stopReason === "length") step.cutOffBy = reachedLimit(prompt.length, params.maxTokens, maxTokens, limits);
  if (processed) step.processed = processed;
  if (tokenVersions !== undefined) step.tokenVersions = tokenVersions;
  if (routing !== undefined) step.routing = routing;
  if (tools !== undefined) step.tools = tools;
  if (starts !== undefined) step.starts = compacted && starts === "new_conversation" ? "compacted" : starts;
  return step;
}

const limitNames: Record<LengthLimit, string> = {
  call: "the model call's own limit",
  max_response_length: "data.max_response_length",
  max_length: "training.max_length",
  context_window: "the model's context window",
};

/** What is wrong with a reply, as a clause. */
export function faultOf(
  { cutOffBy, tokens }: Step,
  reply: ParsedReply,
  wrongWith: GenerateRequest["wrongWith"],
): string | undefined {
  if (cutOffBy !== undefined) return `was cut off after ${tokens.length} tokens (${limitNames[cutOffBy]})`;
  const [problem] = reply.problems;
  return problem === undefined ? wrongWith?.(reply) : `cannot be read: ${problem.message}`;
}

/**
 * The limit that a reply of `maxTokens` tokens has reached.
 * @param asked the call's own limit, if any
 */
export function reachedLimit(
  promptLength: number,
  maxTokens: number,
  asked: number | undefined,
  limits: SamplingLimits,
): LengthLimit {
  const { maxResponseLength, maxLength = Infinity, contextWindow = Infinity } = limits;
  if (asked === maxTokens && asked < maxResponseLength) return "call";
  if (promptLength + maxTokens < longestSequence(limits)) return "max_response_length";
  return contextWindow < maxLength ? "context_window" : "max_length";
}

/** The longest prompt that is answered, regardless of earlier turns. */
function maxPromptTokens(limits: SamplingLimits, budget: GenerateParams["budget"]): number {
  const grown = budget === "conversation" ? limits.maxResponseLength : 0;
  return Math.min(limits.maxPromptLength + grown, longestSequence(limits) - 1);
}

function promptTooLong(length: string, limits: SamplingLimits): RolloutEnded {
  const [limit, key] = [
    [limits.maxPromptLength, "data.max_prompt_length"] as const,
    [(limits.maxLength ?? Infinity) - 1, "training.max_length less 1"] as const,
    [(limits.contextWindow ?? Infinity) - 1, "the model's context window less 1"] as const,
  ].reduce((least, other) => (other[0] < least[0] ? other : least));
  return new RolloutEnded("max_prompt_length_exceeded", `a prompt of ${length} tokens; the limit is ${limit} (${key})`);
}

const longestSequence = ({ maxLength = Infinity, contextWindow = Infinity }: SamplingLimits) =>
  Math.min(maxLength, contextWindow);
