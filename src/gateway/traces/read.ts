/**
 * Reads the trace store: sessions and traces by filter, and exports for datasets and supervised fine-tuning. Writes nothing but
 * deletions.
 */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../../base/errors.ts";
import { type ChatMessage, type Content, imagesOf, type ToolDefinition, textOf } from "../../chat/messages.ts";
import { imageFile, mediaFolder } from "../../images/images.ts";
import { isClientImage, isStored } from "../../images/load-image.ts";
import { toOpenaiToolCalls } from "../parameters.ts";
import type { SessionSummary, Trace, TraceDatabase, TraceFilter, TraceStore } from "../types.ts";

// Queries.

type Row = Record<string, string | number | null | Buffer>;
type Parameter = string | number;

/** @returns the newest sessions, oldest first, including sessions that have only calls */
export function listSessions(database: TraceDatabase, filter: TraceFilter = {}): SessionSummary[] {
  const { sql, parameters } = conditions(filter);
  const rows = database
    .prepare(
      `WITH known AS (
         SELECT project, session, attempt, started_ms, ended_ms, task_id, termination, reward, correct, failure, metadata
           FROM sessions
         UNION ALL
         SELECT project, session, attempt, min(started_ms), NULL, NULL, NULL, NULL, NULL, NULL, '{}' FROM traces
           WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.project = traces.project
             AND sessions.session = traces.session AND sessions.attempt = traces.attempt)
           GROUP BY project, session, attempt
       )
       SELECT known.*, count(traces.number) AS calls, coalesce(sum(traces.status <> 'ok'), 0) AS unanswered,
         coalesce(sum(length(traces.prompt_tokens)), 0) / 4 AS prompt_count,
         coalesce(sum(length(traces.tokens)), 0) / 4 AS sampled_count
       FROM known LEFT JOIN traces USING (project, session, attempt) ${sql}
       GROUP BY known.project, known.session, known.attempt
       ORDER BY known.started_ms DESC, known.session DESC, known.attempt DESC LIMIT ?`,
    )
    .all(...parameters, filter.limit ?? -1) as Row[];
  return rows.reverse().map((row) => ({
    session: String(row.session),
    attempt: Number(row.attempt),
    startedMs: Number(row.started_ms),
    endedMs: row.ended_ms as number | null,
    taskId: row.task_id as string | null,
    termination: row.termination as string | null,
    reward: row.reward as number | null,
    correct: row.correct === null ? null : row.correct === 1,
    failure: row.failure as string | null,
    metadata: parse(row.metadata) as SessionSummary["metadata"],
    calls: Number(row.calls),
    unanswered: Number(row.unanswered),
    promptTokens: Number(row.prompt_count),
    sampledTokens: Number(row.sampled_count),
  }));
}

/** @returns the calls of one attempt in the order of their start */
export function readTraces(
  database: TraceDatabase,
  { session, attempt, project }: { session: string; attempt: number; project?: string },
): Trace[] {
  const rows = database
    .prepare(
      "SELECT * FROM traces WHERE session = ? AND attempt = ? AND project = coalesce(?, project) ORDER BY started_ms, number",
    )
    .all(session, attempt, project ?? null) as Row[];
  return rows.map(toTrace);
}

export function readTrace(database: TraceDatabase, id: string): Trace | undefined {
  const row = database.prepare("SELECT * FROM traces WHERE id = ?").get(id) as Row | undefined;
  return row === undefined ? undefined : toTrace(row);
}

/** @returns how many sessions and calls were deleted */
export function deleteBefore(database: TraceDatabase, beforeMs: number): { sessions: number; traces: number } {
  const traces = database.prepare("DELETE FROM traces WHERE started_ms < ?").run(beforeMs).changes;
  const sessions = database.prepare("DELETE FROM sessions WHERE started_ms < ?").run(beforeMs).changes;
  return { sessions, traces };
}

function conditions(filter: TraceFilter): { sql: string; parameters: Parameter[] } {
  const parts: [sql: string, value: Parameter | undefined][] = [
    ["? IN (known.project, substr(known.project, 1, instr(known.project, '/') - 1))", filter.project],
    ["known.session = ?", filter.session],
    ["known.attempt = ?", filter.attempt],
    ["known.started_ms >= ?", filter.sinceMs],
    ["known.reward >= ?", filter.minReward],
  ];
  const given = parts.filter(([, value]) => value !== undefined);
  return {
    sql: given.length === 0 ? "" : `WHERE ${given.map(([sql]) => sql).join(" AND ")}`,
    parameters: given.map(([, value]) => value as Parameter),
  };
}

/** @throws UserError if the row was damaged */
function parse(text: unknown) {
  try {
    return text === null ? null : JSON.parse(String(text));
  } catch (cause) {
    throw new UserError("a row of the trace store is damaged: a column does not contain JSON", {
      hint: "choose other sessions with --session, --project or --since",
      cause,
    });
  }
}

/** Copies the driver's ArrayBuffer or Buffer, because a Buffer may not be aligned to four bytes. */
const words = (bytes: unknown) => Uint8Array.from(new Uint8Array(bytes as ArrayBuffer)).buffer;

function toTrace(row: Row): Trace {
  return {
    id: String(row.id),
    session: String(row.session),
    attempt: Number(row.attempt),
    role: String(row.role),
    api: String(row.api),
    model: String(row.model),
    startedMs: Number(row.started_ms),
    latencyMs: Number(row.latency_ms),
    status: row.status as Trace["status"],
    error: row.error as string | null,
    stopReason: row.stop_reason as string | null,
    policyVersion: row.policy_version as number | null,
    messages: parse(row.messages),
    tools: parse(row.tools),
    reply: parse(row.reply),
    params: parse(row.params),
    metadata: parse(row.metadata),
    promptTokens: new Int32Array(words(row.prompt_tokens)),
    tokens: new Int32Array(words(row.tokens)),
    logprobs: new Float32Array(words(row.logprobs)),
  };
}

// Conversations as rows of `messages` and `tools` in OpenAI's form, for supervised fine-tuning.

/** The messages of a model call, and its reply. */
export interface Conversation {
  messages: readonly ChatMessage[];
  tools: readonly ToolDefinition[] | null;
}

/**
 * Leaves out calls that a later call continues.
 *
 * @param media the folder of images; default: relative to the run's folder
 */
export function conversationRows(calls: readonly Conversation[], media?: string) {
  const whole = calls.filter(
    ({ messages }, index) => !calls.slice(index + 1).some((later) => continues(later.messages, messages)),
  );
  return whole.map(({ messages, tools }) => ({
    messages: messages.map((message) => toOpenaiMessage(message, media)),
    tools: toOpenaiTools(tools),
  }));
}

/** JSON leaves out what is undefined. */
const toOpenaiTools = (tools: Conversation["tools"]) =>
  tools?.length ? tools.map((tool) => ({ type: "function", function: tool })) : undefined;

/** Whether the messages are the start, or continue it. */
const begins = (messages: readonly ChatMessage[], start: readonly ChatMessage[]) =>
  start.every((message, index) => sameTurn(message, messages[index]));

const continues = (longer: readonly ChatMessage[], start: readonly ChatMessage[]) =>
  longer.length > start.length && begins(longer, start);

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

/** JSON leaves out what is undefined. @param media the folder of images */
const toOpenaiMessage = (
  { role, content, reasoning, toolCalls, toolCallId, name }: ChatMessage,
  media: string = mediaFolder,
) => ({
  role,
  content: toOpenaiContent(content, media),
  reasoning_content: reasoning,
  tool_calls: toolCalls && toOpenaiToolCalls(toolCalls),
  tool_call_id: toolCallId,
  name,
});

/** An image is its file. */
const toOpenaiContent = (content: Content, media: string) =>
  typeof content === "string"
    ? content
    : content.map((part) => {
        if (part.type === "text") return part;
        const { image } = part;
        const url = isStored(image) ? `${media}/${imageFile(image)}` : isClientImage(image) ? image.address : undefined;
        return url === undefined ? part : { type: "image_url", image_url: { url } };
      });

// Exports traces: everything, conversations for supervised fine-tuning, or tasks for a dataset.

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
