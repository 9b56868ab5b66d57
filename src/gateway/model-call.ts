/** One model call of any API: sampled, recorded, traced, and streamed as text that can no longer change. */
import { ModelCallError, RolloutEnded } from "../agents/types.ts";
import { messageOf, UserError } from "../base/errors.ts";
import { type CallOptions, thoughtAsText } from "../chat/conversation.ts";
import { type ChatMessage, type ParsedReply, toMessage } from "../chat/messages.ts";
import type { ThinkingMarks } from "../chat/reply-format.ts";
import type { Chat } from "../chat/types.ts";
import { isStored } from "../images/load-image.ts";
import type { Generated, GenerateParams, GenerateRequest } from "../rollout/types.ts";
import { GatewayError } from "./http.ts";
import type { CallContext, ModelCall, Notices, Trace } from "./types.ts";

/** `index`: which of the n replies. */
export type OnToken = (index: number, token: number, logprob: number) => void;

/**
 * @returns the n replies, in order
 * @throws GatewayError; when the client disconnects, the signal's reason
 */
export async function callModel(
  context: CallContext,
  call: ModelCall,
  onToken?: OnToken,
): Promise<[Generated, ...Generated[]]> {
  const { session, signal, notices } = context;
  const params = session.enforceSampling ? withoutOwnSampling(call.params, notices) : call.params;
  const metadata = { ...session.metadata, ...context.metadata, ...call.metadata };
  const startedMs = Date.now();
  const start = performance.now();
  // If one of several replies fails, the others are stopped.
  const stop = call.n === 1 ? undefined : new AbortController();
  const stopAll = () => stop?.abort(signal.reason);
  if (stop) signal.addEventListener("abort", stopAll, { once: true });
  const { sideCalls } = session;
  const asked = sideCalls && context.role === undefined && "messages" in call.prompt ? call.prompt : undefined;
  const found = asked ? sideCalls?.classify(asked.messages, call.params.tools ?? []) : undefined;
  const role = context.role ?? found?.role;
  const traced = role === context.role ? context : { ...context, role };
  const generate = (index: number): Promise<Generated> => {
    const request: GenerateRequest = { prompt: call.prompt, params, signal: stop?.signal ?? signal, metadata };
    // The same seed would give the same reply n times.
    if (index > 0 && params.seed !== undefined) request.params = { ...params, seed: params.seed + index };
    if (role !== undefined) Object.assign(request, parseLabel(role));
    if (found?.compacted) request.compacted = true;
    if (found?.presumedSide) request.presumedSide = true;
    if (call.topLogprobs > 0) request.topLogprobs = call.topLogprobs;
    if (call.wrongWith) request.wrongWith = call.wrongWith;
    if (onToken) request.onToken = (token, logprob) => onToken(index, token, logprob);
    return session.generate(request);
  };
  const record = (index: number, outcome: Outcome) => {
    const latencyMs = performance.now() - start;
    context.onTrace(statusOf(outcome), () => toTrace(traced, call, index, outcome, metadata, startedMs, latencyMs));
  };
  try {
    const others = Array.from({ length: call.n - 1 }, (_, index) => index + 1);
    const replies = await Promise.all([generate(0), ...others.map(generate)]);
    for (const [index, generated] of replies.entries()) record(index, { generated });
    if (asked) for (const { reply } of replies) sideCalls?.answered(role, reply);
    return replies;
  } catch (error) {
    stop?.abort(error);
    const cancelled = signal.aborted && !(signal.reason instanceof GatewayError);
    const problem = cancelled ? error : toGatewayError(error);
    record(0, { problem, cancelled });
    throw problem;
  } finally {
    signal.removeEventListener("abort", stopAll);
  }
}

/** `"solver#2"` is the second instance of the role solver. */
function parseLabel(label: string): { role: string; instance?: number } {
  const [, role, instance] = /^(.+)#(\d{1,9})$/.exec(label) ?? [];
  return role === undefined ? { role: label } : { role, instance: Number(instance) };
}

const ownSampling = ["temperature", "topP", "topK", "minP", "seed"] as const;

/** Training needs samples of the run's own distribution. A fixed seed would make all rollouts of a task the same. */
function withoutOwnSampling(params: GenerateParams, notices: Notices): GenerateParams {
  if (ownSampling.every((name) => params[name] === undefined)) return params;
  const rest = { ...params };
  for (const name of ownSampling) {
    if (rest[name] === undefined) continue;
    notices.add(`overridden/${name}`, `${name} of the agent's calls is overridden by the run's own sampling`);
    delete rest[name];
  }
  return rest;
}

export function toGatewayError(error: unknown): GatewayError {
  if (error instanceof GatewayError) return error;
  const message = messageOf(error);
  if (error instanceof RolloutEnded) return new GatewayError("prompt_too_long", message, { cause: error });
  // The engine (behind a ModelCallError) or the template refuses this request.
  const { cause } = error instanceof ModelCallError ? error : {};
  if (cause instanceof UserError) return toGatewayError(cause);
  if (error instanceof UserError) {
    const hint = error.hint === undefined ? "" : `. To fix it: ${error.hint}`;
    return new GatewayError("invalid_request", `${message}${hint}`, { cause: error });
  }
  // Only the first line is for clients: a worker's output or a traceback may follow.
  const [firstLine = ""] = message.split("\n", 1);
  return new GatewayError("engine_failed", firstLine, { cause: error });
}

type Outcome = { generated: Generated } | { problem: unknown; cancelled: boolean };

function statusOf(outcome: Outcome): Trace["status"] {
  if ("generated" in outcome) return "ok";
  if (outcome.cancelled) return "cancelled";
  return outcome.problem instanceof GatewayError && outcome.problem.status < 500 ? "refused" : "failed";
}

/** Objects are written out here and in other places that each call passes: spreads are several times slower. */
function toTrace(
  { session, role, api }: CallContext,
  call: ModelCall,
  index: number,
  outcome: Outcome,
  metadata: Trace["metadata"],
  startedMs: number,
  latencyMs: number,
): Trace {
  const generated = "generated" in outcome ? outcome.generated : undefined;
  const isChat = "messages" in call.prompt;
  const status = statusOf(outcome);
  const messages = isChat ? (generated?.messages ?? shortMessages(call.prompt)) : null;
  return {
    id: call.n === 1 ? call.id : `${call.id}-${index}`,
    session: session.name,
    attempt: session.attempt,
    role: role ?? session.defaultRole,
    api,
    model: call.model,
    startedMs,
    latencyMs,
    status,
    error: "problem" in outcome ? messageOf(outcome.problem) : null,
    stopReason: generated?.stopReason ?? null,
    policyVersion: generated?.policyVersion ?? null,
    messages: status === "refused" ? beginning(messages) : messages,
    tools: status === "refused" ? beginning(call.params.tools) : (call.params.tools ?? null),
    reply: generated === undefined ? null : isChat ? toMessage(generated.reply) : generated.text,
    params: generated === undefined ? { ...call.params, tools: undefined } : { ...generated.params },
    promptTokens: generated?.promptTokens ?? new Int32Array(0),
    tokens: generated?.tokens ?? new Int32Array(0),
    logprobs: generated?.logprobs ?? new Float32Array(0),
    metadata,
  };
}

/** The images of a call that was not answered may not be stored, so only their beginning is kept. */
function shortMessages(prompt: ModelCall["prompt"]): readonly ChatMessage[] | null {
  if (!("messages" in prompt)) return null;
  return prompt.messages.map((message) => {
    if (typeof message.content === "string") return message;
    const content = message.content.map((part) => {
      if (part.type === "text" || isStored(part.image)) return part;
      const { image } = part;
      const address = typeof image === "object" && "address" in image ? image.address : String(image);
      return { ...part, image: `${address.slice(0, 100)}...` };
    });
    return { ...message, content };
  });
}

const maxRefused = 10_000;

/** A refused prompt can be as long as a request and is not used: only its first characters are stored. */
function beginning(value: readonly (ChatMessage | object)[] | null | undefined): unknown {
  if (value === null || value === undefined) return null;
  const json = JSON.stringify(value);
  return json.length <= maxRefused ? value : `${json.slice(0, maxRefused)}...`;
}

/** @param counts gets how often each notice was added, by `"gateway/{name}"` */
export function createNotices(log: (line: string) => void, counts: Record<string, number>): Notices {
  return {
    add(name, text) {
      const metric = `gateway/${name}`;
      const before = counts[metric] ?? 0;
      counts[metric] = before + 1;
      if (before === 0) log(`gateway: ${text} (logged once; counted as ${metric})`);
    },
  };
}

// A reply while it is being sampled: the text of its content and thinking that can no longer change.

interface ReplyDelta {
  content: string;
  reasoning: string;
}

export interface ReplyStream {
  /** The text that this token made certain. */
  push(token: number): ReplyDelta;
  /** The rest, once the whole reply is parsed. */
  end(reply: ParsedReply): ReplyDelta;
}

const noMarks: ThinkingMarks = { open: "", close: "" };

interface ReplyStreamOptions {
  /** The call's options. Without them the reply is plain text. */
  options?: CallOptions;
  /** Strings that end the reply and that the client does not get. */
  stops?: readonly string[] | undefined;
}

/**
 * Holds back white space, the beginning of a mark or stop string and, where tools are offered, everything from the first
 * sign of a call, until it is clear what they are. Each character is examined once. Where an answer has a header of its own
 * (harmony), other text than thinking and the answer is known only at the end.
 */
export function replyStream(chat: Chat, { options, stops = [] }: ReplyStreamOptions): ReplyStream {
  const decoder = chat.incrementalDecoder(options ? {} : { skipSpecial: true });
  const thinking = options ? chat.thinkingOf(options) : "never";
  const { thinking: marks = noMarks, answer, calls, split } = options ? chat.format : {};
  const offered = (options?.tools?.length ?? 0) > 0;
  const contentMarks = [...stops, ...(offered ? (calls?.starts ?? []) : []), ...(split ? [marks.close] : [])];
  /** After a call's mark in the thinking, only the whole reply shows whether the end of the thinking is quoted by the call. */
  const quoting = offered ? (calls?.starts ?? []).filter(({ length }) => length > 1) : [];
  const sent: ReplyDelta = { content: "", reasoning: "" };
  /** After "paused", the text is known only from the whole reply. */
  let part: "start" | "reasoning" | "header" | "content" | "paused" = thinking === "never" ? "content" : "start";
  let hasThought = false;
  /** Something other than special tokens was sent, or special tokens were dropped. */
  const hasText = { content: false, reasoning: false };
  /** Text that was not sent so far. */
  let held = "";

  function readStart(): void {
    const text = held.trimStart();
    if (text.startsWith(marks.open)) {
      held = text.slice(marks.open.length);
      part = "reasoning";
    } else if (!marks.open.startsWith(text)) {
      part = thinking === "begun" ? "reasoning" : answer === undefined ? "content" : "header";
    }
  }

  function readHeader(header: string): void {
    const from = held.indexOf(header);
    if (from >= 0 && /^(<\|start\|>assistant)?$/.test(held.slice(0, from).trim())) {
      held = held.slice(from + header.length);
      part = "content";
    } else if (held.length > header.length + 100 || /<\|message\|>/.test(held)) part = "paused";
  }

  function readReasoning(): string {
    const end = held.indexOf(marks.close);
    const quoted = quoting.some((start) => held.includes(start) && held.indexOf(start) < end);
    if (end < 0 || quoted) return send("reasoning", [marks.close, ...stops, ...quoting]);
    const rest = held.slice(end + marks.close.length);
    held = held.slice(0, end);
    const text = send("reasoning", []);
    held = rest;
    hasThought = true;
    part = answer === undefined ? "content" : "header";
    return text;
  }

  function readContent(): string {
    // If thinking ends without a start, everything before its end is thinking.
    return send("content", hasThought || thinking === "never" || split ? contentMarks : [marks.close, ...contentMarks]);
  }

  function send(key: keyof ReplyDelta, marks: readonly string[]): string {
    const { length, isMark } = certainPart(held, marks);
    if (isMark) part = "paused";
    const text = held.slice(0, length).trimEnd();
    held = held.slice(text.length);
    const isTrimmed = !hasText[key] && (key === "reasoning" || hasThought);
    hasText[key] ||= text !== "";
    const cleaned = chat.withoutSpecials(isTrimmed ? text.trimStart() : text);
    sent[key] += cleaned;
    return cleaned;
  }

  const rest = (key: keyof ReplyDelta, whole: string) =>
    // Text that contradicts what was sent cannot be sent.
    whole.startsWith(sent[key]) ? whole.slice(sent[key].length) : "";

  return {
    push(token) {
      const delta: ReplyDelta = { content: "", reasoning: "" };
      const piece = options && chat.stopIds.includes(token) ? "" : decoder.push(token);
      if (part === "paused" || piece === "") return delta;
      held += piece;
      if (piece.trim() === "") return delta;
      if (part === "start") readStart();
      if (part === "reasoning") delta.reasoning = readReasoning();
      if (part === "header" && answer !== undefined) readHeader(answer);
      if (part === "content") delta.content = readContent();
      return delta;
    },
    end({ content, reasoning = "" }) {
      // Thinking that only ended was sent as text before its end arrived. It stays text, and the answer follows it.
      const shown = sent.content.trimStart();
      if (shown !== "" && sent.reasoning === "" && reasoning.startsWith(shown)) {
        return { reasoning: "", content: thoughtAsText({ reasoning, content }).slice(shown.length) };
      }
      return { reasoning: rest("reasoning", reasoning), content: rest("content", content) };
    },
  };
}

/** How much of the text comes before the first mark, or before an end that may become one. */
function certainPart(text: string, marks: readonly string[]): { length: number; isMark: boolean } {
  let length = text.length;
  let isMark = false;
  for (const mark of marks) {
    const whole = text.indexOf(mark);
    if (whole >= 0 && whole < length) {
      length = whole;
      isMark = true;
    }
  }
  if (isMark) return { length, isMark };
  for (const mark of marks) {
    for (let size = Math.min(mark.length - 1, text.length); size > 0; size--) {
      if (text.endsWith(mark.slice(0, size))) length = Math.min(length, text.length - size);
    }
  }
  return { length, isMark };
}
