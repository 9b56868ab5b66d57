/** Model calls and the attempts that made them, as the trace store keeps them. */

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
