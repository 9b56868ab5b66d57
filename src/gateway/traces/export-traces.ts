/** Exports traces: everything, conversations for supervised fine-tuning, or tasks for a dataset. */
import { isDeepStrictEqual } from "node:util";
import { imagesOf, textOf } from "../../chat/images/content.ts";
import type { ChatMessage, Content, ToolDefinition } from "../../chat/messages.ts";
import { isStored } from "../../images/load-image.ts";
import { imageFile, mediaFolder } from "../../images/media-store.ts";
import { toOpenaiToolCalls } from "../apis/tools.ts";
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

/** Leaves out calls that a later call continues, and calls with a prompt of tokens. */
function* conversations(traces: readonly Trace[]): Generator<unknown> {
  const whole = traces.flatMap(({ messages, tools, reply }) =>
    Array.isArray(messages) ? [{ messages: [...messages, reply] as ChatMessage[], tools: tools as Tools }] : [],
  );
  for (const [index, { messages, tools }] of whole.entries()) {
    const isContinued = whole.slice(index + 1).some((later) => continues(later.messages, messages));
    if (isContinued) continue;
    yield {
      messages: messages.map(toOpenaiMessage),
      tools: toOpenaiTools(tools),
    };
  }
}

/** JSON leaves out what is undefined. */
const toOpenaiTools = (tools: Tools | undefined) =>
  tools?.length ? tools.map((tool) => ({ type: "function", function: tool })) : undefined;

type Tools = readonly ToolDefinition[] | null;

const continues = (longer: readonly ChatMessage[], start: readonly ChatMessage[]) =>
  longer.length > start.length && start.every((message, index) => sameTurn(message, longer[index]));

/** Clients leave thinking out and write arguments in another way. */
function sameTurn(left: ChatMessage, right: ChatMessage | undefined): boolean {
  const callsOf = ({ toolCalls = [] }: ChatMessage) => toolCalls.map(({ name, arguments: given }) => [name, given]);
  return (
    left.role === right?.role &&
    textOf(left.content).trim() === textOf(right.content).trim() &&
    isDeepStrictEqual(imagesOf([left]), imagesOf([right])) &&
    isDeepStrictEqual(callsOf(left), callsOf(right))
  );
}

/** JSON leaves out what is undefined. */
const toOpenaiMessage = ({ role, content, reasoning, toolCalls, toolCallId, name }: ChatMessage) => ({
  role,
  content: toOpenaiContent(content),
  reasoning_content: reasoning,
  tool_calls: toolCalls && toOpenaiToolCalls(toolCalls),
  tool_call_id: toolCallId,
  name,
});

/** An image is its file within the run's folder. */
const toOpenaiContent = (content: Content) =>
  typeof content === "string"
    ? content
    : content.map((part) => {
        if (part.type === "text" || !isStored(part.image)) return part;
        return { type: "image_url", image_url: { url: `${mediaFolder}/${imageFile(part.image)}` } };
      });

function toRow({ session, taskId, reward, correct }: SessionSummary, traces: readonly Trace[]) {
  const prompt = traces[0]?.messages as ChatMessage[] | null | undefined;
  const reply = traces.at(-1)?.reply as ChatMessage | string | null | undefined;
  return {
    id: taskId ?? session,
    messages: prompt?.map(toOpenaiMessage) ?? null,
    tools: toOpenaiTools(traces[0]?.tools as Tools | undefined),
    reply: typeof reply === "string" ? reply : (reply?.content ?? null),
    reward,
    correct,
    session,
  };
}
