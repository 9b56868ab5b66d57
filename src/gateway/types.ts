/** What the parts of the gateway share: a session, a call, what is recorded of it, and the gateway as rollouts see it. */
import type Database from "libsql";
import type { NoVision, Vision } from "../chat/images.ts";
import type { ChatMessage, ParsedReply, ToolDefinition } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import type { GenerateParams, GenerateRequest, RolloutSession } from "../rollout/types.ts";

/** One model call as its client saw it, with its tokens. */
export interface Trace {
  /** Unique; the client got it with the reply. */
  id: string;
  session: string;
  /** 0 for the first attempt of a session, one more for each retry. */
  attempt: number;
  /** The agent's role in the session. */
  role: string;
  /** The client's API, e.g. `"chat.completions"`. */
  api: string;
  model: string;
  /** Milliseconds since 1970. */
  startedMs: number;
  latencyMs: number;
  /** `cancelled`: the client disconnected; `failed`: the engine did not answer; `refused`: the request is not allowed. */
  status: "ok" | "cancelled" | "failed" | "refused";
  error: string | null;
  stopReason: string | null;
  policyVersion: number | null;
  /** The conversation as the model saw it; null for completions. Of refused calls at most the beginning, as text. */
  messages: unknown;
  tools: unknown;
  /** The model's answer: a message, or the text of a completion. */
  reply: unknown;
  /** The sampling parameters, including defaults. */
  params: Record<string, unknown>;
  /** `[P]`, `[T]`, `[T]`; empty if the call was not answered. */
  promptTokens: Int32Array;
  tokens: Int32Array;
  logprobs: Float32Array;
  metadata: Record<string, unknown>;
}

/** One attempt at a session. Its reward is known when it has ended. */
export interface TraceSession {
  session: string;
  attempt: number;
  /** Milliseconds since 1970. */
  startedMs: number;
  endedMs: number | null;
  taskId: string | null;
  /** Why it ended; null while it runs, or if its process died. */
  termination: string | null;
  /** Null: unknown. */
  reward: number | null;
  correct: boolean | null;
  failure: string | null;
  metadata: Record<string, unknown>;
}

export interface SessionSummary extends TraceSession {
  calls: number;
  /** Calls that the engine did not answer, or whose client disconnected. */
  unanswered: number;
  promptTokens: number;
  sampledTokens: number;
}

export interface TraceFilter {
  /** Only traces of this run, or of all runs of this project: `"sums"` includes `"sums/2026-01-01-default"`. */
  project?: string | undefined;
  session?: string | undefined;
  attempt?: number | undefined;
  /** Milliseconds since 1970: sessions that began then or later. */
  sinceMs?: number | undefined;
  /** Sessions whose reward is known and at least this. */
  minReward?: number | undefined;
  /** The number of sessions; the newest are returned. */
  limit?: number | undefined;
}

export interface TraceWriter {
  trace(trace: Trace): void;
  /** Records that a session began or ended. The last record of an attempt replaces earlier ones. */
  session(session: TraceSession): void;
  /** Writes all waiting records. */
  flush(): void;
  /** `lost`: dropped because the file could not be written three times in a row. */
  readonly counts: { waiting: number; written: number; lost: number };
  close(): void;
}

/** Recorded model calls: written by a gateway, read by session and attempt. */
export interface TraceStore extends TraceWriter {
  sessions(filter?: TraceFilter): SessionSummary[];
  /** The calls of one attempt in the order of their start. */
  traces(of: { session: string; attempt: number; project?: string }): Trace[];
  find(id: string): Trace | undefined;
  /** Deletes what began before. */
  deleteBefore(beforeMs: number): { sessions: number; traces: number };
}

export type TraceDatabase = Database.Database;

export interface SideCalls {
  /** @returns the role of a call; undefined: the agent's own */
  classify(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): Classified;
  /** Call it with each reply and the role of its call. */
  answered(role: string | undefined, reply: ParsedReply): void;
}

export interface LiveSession {
  readonly name: string;
  /** 0 for the first attempt, one more for each retry. */
  readonly attempt: number;
  readonly startedMs: number;
  readonly defaultRole: string;
  /** Recorded with every call. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** The run's own sampling parameters replace the client's. */
  readonly enforceSampling: boolean;
  readonly generate: RolloutSession["generate"];
  /** If set, it finds the role of calls whose address names none. */
  sideCalls: SideCalls | undefined;
  /** Reports a call that was refused before `generate`. */
  readonly reportProblem: RolloutSession["reportProblem"];
}

export interface OpenSession {
  name: string;
  attempt: number;
  session: Pick<RolloutSession, "generate" | "reportProblem">;
  metadata?: Readonly<Record<string, unknown>>;
  enforceSampling?: boolean;
  /** For sessions that a call opened: called when the session is forgotten. */
  onForgotten?: () => void;
}

/** Requests that the gateway did not follow exactly: each is counted, the first of its kind is logged. */
export interface Notices {
  /** @param name of the metric, e.g. `"ignored_parameter/user"` */
  add(name: string, text: string): void;
}

/** What an API needs to answer a request. */
export interface CallContext {
  session: LiveSession;
  role: string | undefined;
  /** `"chat.completions"`, `"messages"`, ... */
  api: string;
  chat: Chat;
  vision: Vision | NoVision;
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

/** The addresses of one session. */
export interface GatewaySession {
  /** For OpenAI's clients and compatible ones; ends with `/v1`. */
  readonly baseURL: string;
  /** For Anthropic's clients, which add `/v1` themselves. */
  readonly anthropicBaseURL: string;
  readonly apiKey: string;
  /** The same session in another role. */
  as(role: string): Pick<GatewaySession, "baseURL" | "anthropicBaseURL" | "apiKey">;
  /** Where an agent on another server posts its result. It contains a secret of the session, which its API key does not tell. */
  readonly resultURL: string;
  /** The result that is posted to `resultURL`. Rejects with the signal's reason. */
  result(signal: AbortSignal): Promise<unknown>;
  /** See `GatewayAccess`. */
  separateSideCalls(): void;
  /** Later calls get the error `session_ended`. */
  close(): void;
}

export interface Gateway {
  /** The address for agents, e.g. `"http://127.0.0.1:4100"`. */
  readonly origin: string;
  /** Where it listens; differs from `origin` behind a tunnel. */
  readonly localOrigin: string;
  readonly store: TraceStore | undefined;
  open(session: OpenSession): GatewaySession;
  /** How calls ended, and how often requests were not followed exactly. */
  counts(): Record<string, number>;
  /** Ends all connections. The store stays open. */
  close(): Promise<void>;
}

/** With the fields of `GenerateRequest`. */
type Classified = { role?: string } & Pick<GenerateRequest, "compacted" | "presumedSide">;
