/** What the trace store keeps of model calls and of the attempts that made them. */

/** One model call as its client saw it, with the tokens behind it. */
export interface Trace {
  /** Unique; the id that the client got with the reply. */
  id: string;
  session: string;
  /** 0 for the first attempt of a session, one more for each retry. */
  attempt: number;
  /** The agent's role in the session. */
  role: string;
  /** Which API the client spoke, e.g. `"chat.completions"`. */
  api: string;
  model: string;
  /** Milliseconds since 1970. */
  startedMs: number;
  latencyMs: number;
  /** `cancelled`: the client went away; `failed`: the engine did not answer; `refused`: the request was not allowed. */
  status: "ok" | "cancelled" | "failed" | "refused";
  error: string | null;
  stopReason: string | null;
  policyVersion: number | null;
  /** The conversation as the model was shown it; a completion's prompt is a string. */
  messages: unknown;
  tools: unknown;
  /** What the model answered: one message of the conversation. */
  reply: unknown;
  /** Sampling parameters that were in force. */
  params: Record<string, unknown>;
  /** `[P]`, `[T]`, `[T]`; empty where the call was not answered. */
  promptTokens: Int32Array;
  tokens: Int32Array;
  logprobs: Float32Array;
  metadata: Record<string, unknown>;
}

/** One attempt at a session. Its calls name it; what it was worth is known when it has ended. */
export interface TraceSession {
  session: string;
  attempt: number;
  /** Milliseconds since 1970. */
  startedMs: number;
  endedMs: number | null;
  taskId: string | null;
  /** Why it ended; null while it runs, and for ever where its process died. */
  termination: string | null;
  /** Null: not known. */
  reward: number | null;
  correct: boolean | null;
  failure: string | null;
  metadata: Record<string, unknown>;
}

export interface SessionSummary extends TraceSession {
  calls: number;
  /** Calls that the engine did not answer, or whose client went away. */
  unanswered: number;
  promptTokens: number;
  sampledTokens: number;
}
