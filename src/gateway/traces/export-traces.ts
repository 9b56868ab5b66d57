/** Traces in forms that are trained on: everything, conversations for supervised fine-tuning, tasks for a dataset. */
import { isDeepStrictEqual } from "node:util";
import type { ChatMessage, ToolDefinition } from "../../chat/messages.ts";
import { toOpenaiToolCalls } from "../apis/tools.ts";
import type { TraceStore } from "./open-trace-store.ts";
import type { TraceFilter } from "./trace-reader.ts";
import type { SessionSummary, Trace } from "./types.ts";

/**
 * - `jsonl`: each call as it is stored, tokens and log-probabilities too
 * - `sft`: each conversation to its end, as `messages` and `tools` in OpenAI's form
 * - `rows`: each session as a task, with its first prompt, its last reply and its reward
 */
export const exportForms = ["jsonl", "sft", "rows"] as const;
export type ExportForm = (typeof exportForms)[number];

/** @returns one JSON value a line; calls that were not answered are in `jsonl` only */
export function* exportTraces(store: TraceStore, form: ExportForm, filter: TraceFilter): Generator<unknown> {
  for (const session of store.sessions(filter)) {
    const traces = store.traces(session);
    const answered = traces.filter(({ status }) => status === "ok");
    if (form === "jsonl") yield* traces.map((trace) => ({ ...traceJson(trace), reward: session.reward }));
    else if (form === "sft") yield* conversations(answered);
    else if (answered.length > 0) yield toRow(session, answered);
  }
}

export const traceJson = (trace: Trace) => ({
  ...trace,
  promptTokens: Array.from(trace.promptTokens),
  tokens: Array.from(trace.tokens),
  logprobs: Array.from(trace.logprobs),
});

/** A call whose history goes on in a later call is told there. Calls by mere tokens are no conversations. */
function* conversations(traces: readonly Trace[]): Generator<unknown> {
  const whole = traces.flatMap((trace) => {
    const { messages, reply } = trace;
    return Array.isArray(messages) ? [{ trace, messages: [...messages, reply] as ChatMessage[] }] : [];
  });
  for (const [index, { trace, messages }] of whole.entries()) {
    const goesOn = whole.some(
      (later, at) =>
        at > index &&
        later.messages.length > messages.length &&
        messages.every((message, position) => sameTurn(message, later.messages[position]!)),
    );
    if (goesOn) continue;
    const tools = (trace.tools as ToolDefinition[] | null) ?? [];
    yield {
      messages: messages.map(toOpenaiMessage),
      ...(tools.length === 0 ? {} : { tools: tools.map((tool) => ({ type: "function", function: tool })) }),
    };
  }
}

/** Clients leave thinking out and write arguments anew. */
function sameTurn(left: ChatMessage, right: ChatMessage): boolean {
  const calls = ({ toolCalls = [] }: ChatMessage) => toolCalls.map(({ name, arguments: given }) => [name, given]);
  return (
    left.role === right.role &&
    left.content.trim() === right.content.trim() &&
    isDeepStrictEqual(calls(left), calls(right))
  );
}

function toOpenaiMessage({ role, content, reasoning, toolCalls, toolCallId, name }: ChatMessage) {
  return {
    ...{ role, content },
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(toolCalls === undefined ? {} : { tool_calls: toOpenaiToolCalls([...toolCalls]) }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
    ...(name === undefined ? {} : { name }),
  };
}

function toRow({ session, taskId, reward, correct }: SessionSummary, traces: readonly Trace[]) {
  const prompt = traces[0]!.messages as ChatMessage[] | null;
  const reply = traces.at(-1)!.reply as ChatMessage | string | null;
  return {
    id: taskId ?? session,
    messages: prompt?.map(toOpenaiMessage) ?? null,
    reply: typeof reply === "string" ? reply : (reply?.content ?? null),
    ...{ reward, correct, session },
  };
}
