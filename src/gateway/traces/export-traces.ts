/** Exports traces: everything, conversations for supervised fine-tuning, or tasks for a dataset. */
import type { ChatMessage } from "../../chat/messages.ts";
import { begins, type Conversation, conversationRows, toOpenaiMessage, toOpenaiTools } from "./conversation-rows.ts";
import type { TraceStore } from "./open-trace-store.ts";
import type { TraceFilter } from "./trace-reader.ts";
import type { SessionSummary, Trace } from "./types.ts";

/**
 * - `jsonl`: each call as it is stored, with tokens and log-probabilities
 * - `sft`: each whole conversation, as `messages` and `tools` in OpenAI's form
 * - `rows`: each session as a task, with its first prompt, its last reply and its reward
 */
export const exportForms = ["jsonl", "sft", "rows"] as const;
export type ExportForm = (typeof exportForms)[number];

/** @returns one JSON value per line. Only `jsonl` contains calls that were not answered. */
export function* exportTraces(store: TraceStore, form: ExportForm, filter: TraceFilter): Generator<unknown> {
  for (const session of store.sessions(filter)) {
    const traces = store.traces(session);
    const answered = traces.filter(({ status }) => status === "ok");
    if (form === "jsonl") yield* traces.map((trace) => ({ ...traceJson(trace), reward: session.reward }));
    else if (form === "sft") yield* conversationRows(answered.flatMap(conversationsOf));
    else if (answered.length > 0) yield toRow(session, answered);
  }
}

export const traceJson = (trace: Trace) => ({
  ...trace,
  promptTokens: Array.from(trace.promptTokens),
  tokens: Array.from(trace.tokens),
  logprobs: Array.from(trace.logprobs),
});

/** None for a call with a prompt of tokens. */
export const conversationsOf = ({ messages, tools, reply }: Trace): Conversation[] =>
  Array.isArray(messages)
    ? [{ messages: [...messages, reply] as ChatMessage[], tools: tools as Conversation["tools"] }]
    : [];

function toRow({ session, taskId, reward, correct }: SessionSummary, traces: readonly Trace[]) {
  const prompt = traces[0]?.messages as ChatMessage[] | null | undefined;
  // Calls of one trace may be of several conversations.
  const last = traces.findLast(({ messages }) => Array.isArray(messages) && begins(messages, prompt ?? []));
  const reply = (last ?? traces.at(-1))?.reply as ChatMessage | string | null | undefined;
  return {
    id: taskId ?? session,
    messages: prompt?.map((message) => toOpenaiMessage(message)) ?? null,
    tools: toOpenaiTools((traces[0]?.tools ?? null) as Conversation["tools"]),
    reply: typeof reply === "string" ? reply : (reply?.content ?? null),
    reward,
    correct,
    session,
  };
}
