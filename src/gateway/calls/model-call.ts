/** Executes a model call of any API: samples, records and traces it. */
import { ModelCallError, RolloutEnded } from "../../agents/control-flow.ts";
import type { Blind, Vision } from "../../chat/images/prepare-images.ts";
import { type ChatMessage, toMessage } from "../../chat/messages.ts";
import type { Chat } from "../../chat/types.ts";
import { messageOf, UserError } from "../../errors.ts";
import { isStored } from "../../images/load-image.ts";
import type { Generated, GenerateParams, GenerateRequest } from "../../rollout/session/types.ts";
import { GatewayError } from "../requests/gateway-error.ts";
import type { LiveSession } from "../sessions/sessions.ts";
import type { Trace } from "../traces/types.ts";

/** What an API needs to answer a request. */
export interface CallContext {
  session: LiveSession;
  role: string | undefined;
  /** `"chat.completions"`, `"messages"`, ... */
  api: string;
  chat: Chat;
  vision: Vision | Blind;
  notices: Notices;
  userAgent: string;
  /** Aborted when the client disconnects. */
  signal: AbortSignal;
  /** Refuse what only constrained decoding can guarantee, or answer with what was sampled and count it. */
  unenforceable: "refuse" | "allow";
  /** From the request's header, in addition to the metadata in its body. */
  metadata: Readonly<Record<string, unknown>>;
  /** Called for every call, answered or not. The trace is created only if it is stored. */
  onTrace: (status: Trace["status"], trace: () => Trace) => void;
}

export interface ModelCall {
  id: string;
  /** As the client named it. */
  model: string;
  prompt: GenerateRequest["prompt"];
  /** Replies to the same prompt. */
  n: number;
  params: GenerateParams;
  topLogprobs: number;
  metadata: Readonly<Record<string, unknown>>;
  wrongWith?: GenerateRequest["wrongWith"];
}

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

/** Requests that the gateway did not follow exactly: each is counted, the first of its kind is logged. */
export interface Notices {
  /** @param name of the metric, e.g. `"ignored_parameter/user"` */
  add(name: string, text: string): void;
  /** How often, by `"gateway/{name}"`. */
  counts(): Record<string, number>;
}

export function createNotices(log: (line: string) => void): Notices {
  const counts = new Map<string, number>();
  return {
    add(name, text) {
      const before = counts.get(name) ?? 0;
      counts.set(name, before + 1);
      if (before === 0) log(`gateway: ${text} (logged once; counted as gateway/${name})`);
    },
    counts: () => Object.fromEntries([...counts].map(([name, count]) => [`gateway/${name}`, count])),
  };
}
