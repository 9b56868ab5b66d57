/** Turns a sample into the answer of a model call and into the recorded step. */
import type { Sample } from "../../backends/engine.ts";
import type { ParsedReply } from "../../chat/messages.ts";
import type { LengthLimit, Step } from "../../trajectories/types.ts";
import type { BegunTurn } from "./begin-turn.ts";
import { reachedLimit } from "./sample-limits.ts";
import type { Generated, GenerateRequest, SamplingLimits } from "./types.ts";

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
  { params: { tools, maxTokens } }: GenerateRequest,
  { prompt, media, messages, starts }: BegunTurn,
  { tokens, logprobs, processed, stopReason, policyVersion, tokenVersions }: Sample,
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
  if (tools !== undefined) step.tools = tools;
  if (starts !== undefined) step.starts = starts;
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
