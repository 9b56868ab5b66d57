/** What every API's request comes down to, and how it is carried out: sampled, recorded, traced. */

import type { ChatMessage, ToolDefinition } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import { UserError } from "../errors.ts";
import { RolloutEnded } from "../rollout/failures.ts";
import type { Generated, GenerateParams, GenerateRequest } from "../rollout/generate.ts";
import { GatewayError } from "./gateway-error.ts";
import type { Notices } from "./notices.ts";
import type { LiveSession } from "./sessions.ts";
import type { Trace } from "./traces/types.ts";

/** What an API needs to answer a request. */
export interface CallContext {
  session: LiveSession;
  role: string | undefined;
  /** `"chat.completions"`, `"messages"`, ... */
  api: string;
  chat: Chat;
  notices: Notices;
  /** Aborted when the client has gone. */
  signal: AbortSignal;
  /** What cannot be guaranteed without constrained decoding: refuse it, or answer what was sampled and count it. */
  unenforceable: "refuse" | "allow";
  /** Of the call, beside what its body says. */
  metadata: Readonly<Record<string, unknown>>;
  /** Told of every call, answered or not; the trace is made where somebody keeps it. */
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
 * @throws GatewayError; when the client goes, the signal's reason
 */
export async function callModel(context: CallContext, call: ModelCall, onToken?: OnToken): Promise<Generated[]> {
  const { session, signal, notices } = context;
  const params = session.enforceSampling ? withoutOwnSampling(call.params, notices) : call.params;
  const metadata = { ...session.metadata, ...context.metadata, ...call.metadata };
  const startedMs = Date.now();
  const start = performance.now();
  // When one of several replies fails nobody waits for the others.
  const stop = call.n === 1 ? undefined : new AbortController();
  const stopAll = () => stop?.abort(signal.reason);
  if (stop) signal.addEventListener("abort", stopAll, { once: true });
  const one = (index: number): Promise<Generated> =>
    session.generate({
      prompt: call.prompt,
      // The same seed for all would give n times the same reply.
      params: index > 0 && params.seed !== undefined ? { ...params, seed: params.seed + index } : params,
      signal: stop?.signal ?? signal,
      ...readLabel(context.role),
      ...(call.topLogprobs > 0 ? { topLogprobs: call.topLogprobs } : {}),
      ...(call.wrongWith ? { wrongWith: call.wrongWith } : {}),
      ...(onToken ? { onToken: (token: number, logprob: number) => onToken(index, token, logprob) } : {}),
      metadata,
    });
  const told = (index: number, outcome: Outcome) => {
    const latencyMs = performance.now() - start;
    context.onTrace(statusOf(outcome), () => toTrace(context, call, index, outcome, metadata, startedMs, latencyMs));
  };
  try {
    const replies =
      call.n === 1 ? [await one(0)] : await Promise.all(Array.from({ length: call.n }, (_, index) => one(index)));
    for (const [index, generated] of replies.entries()) told(index, { generated });
    return replies;
  } catch (error) {
    stop?.abort(error);
    const cancelled = signal.aborted && !(signal.reason instanceof GatewayError);
    const problem = cancelled ? error : toGatewayError(error);
    told(0, { problem, cancelled });
    throw problem;
  } finally {
    signal.removeEventListener("abort", stopAll);
  }
}

/** `"solver#2"` is the second instance of the role solver. */
function readLabel(label: string | undefined): Pick<GenerateRequest, "role" | "instance"> {
  if (label === undefined) return {};
  const [, role, instance] = /^(.+)#(\d{1,9})$/.exec(label) ?? [];
  return role === undefined ? { role: label } : { role, instance: Number(instance) };
}

const ownSampling = ["temperature", "topP", "topK", "minP", "seed"] as const;

/** What is learned from must be sampled as the run says: an agent's fixed seed would make all its rollouts the same. */
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
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof RolloutEnded) return new GatewayError("prompt_too_long", message, { cause: error });
  // What the template or the engine refuses about this request.
  if (error instanceof UserError) {
    const hint = error.hint === undefined ? "" : `. To fix it: ${error.hint}`;
    return new GatewayError("invalid_request", `${message}${hint}`, { cause: error });
  }
  // What follows the first line is not for clients: a worker's last output, a traceback.
  return new GatewayError("engine_failed", message.split("\n", 1)[0]!, { cause: error });
}

type Outcome = { generated: Generated } | { problem: unknown; cancelled: boolean };

function statusOf(outcome: Outcome): Trace["status"] {
  if ("generated" in outcome) return "ok";
  if (outcome.cancelled) return "cancelled";
  return outcome.problem instanceof GatewayError && outcome.problem.status < 500 ? "refused" : "failed";
}

const none = { promptTokens: new Int32Array(0), tokens: new Int32Array(0), logprobs: new Float32Array(0) };

function toTrace(
  { session, role, api }: CallContext,
  call: ModelCall,
  index: number,
  outcome: Outcome,
  metadata: Trace["metadata"],
  startedMs: number,
  latencyMs: number,
): Trace {
  const { messages, tools } = shown(call);
  const base = {
    id: call.n === 1 ? call.id : `${call.id}-${index}`,
    session: session.name,
    attempt: session.attempt,
    role: role ?? session.defaultRole,
    ...{ api, model: call.model, startedMs, latencyMs, messages, tools, metadata },
  };
  if ("generated" in outcome) {
    const { promptTokens, tokens, logprobs, stopReason, policyVersion, reply, text, params } = outcome.generated;
    const chatReply: ChatMessage = {
      role: "assistant",
      content: reply.content,
      ...(reply.reasoning ? { reasoning: reply.reasoning } : {}),
      ...(reply.toolCalls.length > 0 ? { toolCalls: reply.toolCalls } : {}),
    };
    return {
      ...base,
      ...{ status: "ok", error: null, stopReason, policyVersion, promptTokens, tokens, logprobs },
      reply: "messages" in call.prompt ? chatReply : text,
      params: { ...params },
    };
  }
  const { problem } = outcome;
  return {
    ...base,
    ...none,
    status: statusOf(outcome),
    error: problem instanceof Error ? problem.message : String(problem),
    ...{ stopReason: null, policyVersion: null, reply: null },
    params: { ...call.params, tools: undefined },
  };
}

function shown({ prompt, params }: ModelCall): { messages: unknown; tools: readonly ToolDefinition[] | null } {
  return { messages: "messages" in prompt ? prompt.messages : null, tools: params.tools ?? null };
}
