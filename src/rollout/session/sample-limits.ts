/** Applies limits and defaults to a model call, and checks the engine's answer. */

import { RolloutEnded } from "../../agents/control-flow.ts";
import type { Sample, SamplingParams } from "../../backends/engine.ts";
import type { LengthLimit } from "../../trajectories/types.ts";
import type { GenerateParams, SamplingDefaults, SamplingLimits } from "./types.ts";

/**
 * The most tokens of a reply to a prompt of this length; at least 1.
 * @param spent tokens of the response so far, in earlier turns
 * @throws RolloutEnded when the limits leave none
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

/** The longest prompt that is answered, regardless of earlier turns. */
export function mostPromptTokens(limits: SamplingLimits, budget: GenerateParams["budget"]): number {
  const grown = budget === "conversation" ? limits.maxResponseLength : 0;
  return Math.min(limits.maxPromptLength + grown, longestSequence(limits) - 1);
}

export function promptTooLong(length: string, limits: SamplingLimits): RolloutEnded {
  const [limit, key] = [
    [limits.maxPromptLength, "data.max_prompt_length"] as const,
    [(limits.maxLength ?? Infinity) - 1, "training.max_length less 1"] as const,
    [(limits.contextWindow ?? Infinity) - 1, "the model's context window less 1"] as const,
  ].reduce((least, other) => (other[0] < least[0] ? other : least));
  return new RolloutEnded("max_prompt_length_exceeded", `a prompt of ${length} tokens; the limit is ${limit} (${key})`);
}

const longestSequence = ({ maxLength = Infinity, contextWindow = Infinity }: SamplingLimits) =>
  Math.min(maxLength, contextWindow);

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
  for (let index = 0; index < tokens.length; index++) {
    if (tokens[index]! < 0) throw new Error(`the engine answered the token id ${tokens[index]}`);
    if (Number.isNaN(logprobs[index]!) || logprobs[index]! > 1e-3) {
      throw new Error(`the engine answered the log-probability ${logprobs[index]}`);
    }
  }
}
