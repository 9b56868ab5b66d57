/** A model call in full: what an API's request becomes, whichever API it is. */
import type { CallParams } from "../agents/types.ts";
import type { Sample } from "../backends/engine.ts";
import type { ChatMessage, ParsedReply } from "../chat/messages.ts";

export interface GenerateRequest {
  /** Default: the session's own. */
  role?: string;
  /** One of several of the role, each with conversations and a trajectory of its own. */
  instance?: number;
  /** A conversation, which continues earlier calls' tokens where it takes them up; or tokens or text as they are. */
  prompt: { messages: readonly ChatMessage[] } | { tokens: Int32Array } | { text: string; addSpecial: boolean };
  params: GenerateParams;
  /** Also give the k most likely tokens at each sampled position. */
  topLogprobs?: number;
  /** Aborting ends the call; it is then recorded nowhere. */
  signal?: AbortSignal;
  /** Called for each token as it is sampled, by engines that can tell. */
  onToken?: (token: number, logprob: number) => void;
  /** What is wrong with a reply that could be read, as a clause: `"is not the JSON that was asked for"`. */
  wrongWith?: (reply: ParsedReply) => string | undefined;
  /** Added to the step's figures for grouping: see `rllm.sdk.processing`. */
  metadata?: Readonly<Record<string, unknown>>;
}

export interface GenerateParams extends CallParams {
  stopIds?: readonly number[];
  ignoreEos?: boolean;
  /** Default: derived from the rollout and the call's position in it. */
  seed?: number;
}

export interface Generated
  extends Pick<Sample, "tokens" | "logprobs" | "stopReason" | "policyVersion" | "topLogprobs"> {
  promptTokens: Int32Array;
  /** The whole reply, special tokens left out. */
  text: string;
  /** The reply taken apart; a reply to mere tokens is all content. */
  reply: ParsedReply;
  /** What was in force, defaults filled in. */
  params: { maxTokens: number; temperature: number; topP: number; topK: number; minP: number; seed: number };
}
