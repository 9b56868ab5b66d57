/**
 * Spans of OpenTelemetry's conventions for generative AI, in OTLP's JSON, as traces. They have no tokens: they become
 * tasks and rows for supervised training, and never batches of reinforcement learning.
 */
import { messageOf, UserError } from "../../base/errors.ts";
import { isObject, mean, ownValue } from "../../base/values.ts";
import {
  type ChatMessage,
  type ImagePart,
  normalizeContent,
  type TextMessage,
  type TextPart,
  type ToolCall,
  type ToolDefinition,
} from "../../chat/messages.ts";
import type { Trace, TraceSession, TraceStore } from "../types.ts";

export interface ReadSpans {
  traces: Trace[];
  /** Of OpenTelemetry's traces that have calls or scores. */
  sessions: TraceSession[];
  /** Spans that are no model call with its messages, by reason. */
  skipped: Record<string, number>;
}

/** Changes what is stored, such as personal data; null or undefined leaves the call out. */
export type TraceFilter = (trace: Trace) => Filtered | Promise<Filtered>;
type Filtered = Trace | null | undefined;

type Attributes = Record<string, unknown>;

/**
 * @param body `{"resourceSpans": [...]}`
 * @throws UserError if it is not OTLP's JSON, or the filter fails
 */
export async function readSpans(body: unknown, filter: TraceFilter = (trace) => trace): Promise<ReadSpans> {
  if (!isObject(body) || !Array.isArray(body.resourceSpans)) {
    throw new UserError('these are not OpenTelemetry traces in JSON: "resourceSpans" is missing', {
      hint: "export with OTLP/HTTP as JSON (OTEL_EXPORTER_OTLP_PROTOCOL=http/json)",
    });
  }
  const found: ReadSpans = { traces: [], sessions: [], skipped: {} };
  const read: Trace[] = [];
  const sessions = new Map<string, { started: number; scores: Record<string, number> }>();
  const skip = (reason: string) => {
    found.skipped[reason] = (found.skipped[reason] ?? 0) + 1;
  };
  for (const span of spansOf(body.resourceSpans)) {
    const events = listOf(span.events).map((event) => ({
      name: label(event.name),
      attributes: readAttributes(event.attributes),
    }));
    const started = milliseconds(span.startTimeUnixNano);
    const session = label(span.traceId ?? "");
    for (const [index, { name, attributes }] of [
      ...events,
      { name: label(span.name), attributes: readAttributes(span.attributes) },
    ].entries()) {
      const value = attributes["gen_ai.evaluation.score.value"];
      if (typeof value !== "number" || !Number.isFinite(value)) continue;
      if (name !== "gen_ai.evaluation.result" && attributes["gen_ai.evaluation.name"] === undefined) continue;
      const known = sessions.get(session) ?? { started, scores: {} };
      known.scores[`${label(span.spanId)} ${index}`] = value;
      sessions.set(session, known);
    }
    const attributes = { ...readAttributes(span.attributes), ...detailsOf(events) };
    const reason = toTrace(span, attributes, events, (trace) => read.push(trace));
    if (reason !== undefined) skip(reason);
  }
  for (const trace of read) {
    const kept = await filtered(trace, filter);
    if (kept === undefined) skip("left out by the filter");
    else {
      found.traces.push(kept);
      if (!sessions.has(trace.session)) sessions.set(trace.session, { started: trace.startedMs, scores: {} });
    }
  }
  for (const [session, { started, scores }] of sessions) {
    found.sessions.push({
      ...{ session, attempt: 0, startedMs: started, endedMs: started, taskId: null, termination: "env_done" },
      ...{ reward: rewardOf(scores), correct: null, failure: null },
      metadata: { source: "opentelemetry", scores },
    });
  }
  return found;
}

const rewardOf = (scores: Record<string, number>) =>
  Object.keys(scores).length === 0 ? null : mean(Object.values(scores));

async function filtered(trace: Trace, filter: TraceFilter): Promise<Trace | undefined> {
  let kept: unknown;
  try {
    kept = await filter(trace);
  } catch (cause) {
    throw new UserError(`the span filter failed: ${messageOf(cause)}`, { cause });
  }
  if (kept === null || kept === undefined) return undefined;
  if (!isObject(kept) || kept.id !== trace.id || kept.session !== trace.session) {
    throw new UserError("the span filter returned something else than the trace with its id and session", {
      hint: "write: export default (trace) => ({ ...trace, messages: redact(trace.messages), reply: redact(trace.reply) })",
    });
  }
  return kept as unknown as Trace;
}

/**
 * Spans of a trace arrive in several exports: scores join those that are stored, and spans that are stored stay as they are.
 *
 * @returns how many spans were not stored, by reason
 */
export function storeSpans(
  { trace, session, sessions, find }: Pick<TraceStore, "trace" | "session" | "sessions" | "find">,
  read: ReadSpans,
): Record<string, number> {
  const fresh = read.traces.filter(({ id }) => find(id) === undefined);
  fresh.forEach(trace);
  for (const one of read.sessions) {
    const earlier = sessions({ session: one.session }).find(({ metadata }) => metadata.source === "opentelemetry");
    const scores = { ...(earlier?.metadata.scores as object), ...(one.metadata.scores as Record<string, number>) };
    session({ ...one, reward: rewardOf(scores), metadata: { ...one.metadata, scores } });
  }
  const known = read.traces.length - fresh.length;
  return { ...read.skipped, ...(known === 0 ? {} : { "already stored": known }) };
}

type Span = Record<string, unknown>;
type Events = readonly { name: string; attributes: Attributes }[];

const listOf = (value: unknown): Record<string, unknown>[] => (Array.isArray(value) ? value.filter(isObject) : []);

const spansOf = (resources: unknown): Span[] =>
  listOf(resources).flatMap(({ scopeSpans }) => listOf(scopeSpans).flatMap(({ spans }) => listOf(spans)));

/** The names of model calls; agents and tools have spans of their own around and between them. */
const calls = ["chat", "text_completion", "generate_content"];

/** @returns why the span is not a trace */
function toTrace(span: Span, attributes: Attributes, events: Events, add: (trace: Trace) => void): string | undefined {
  const operation = attributes["gen_ai.operation.name"];
  if (typeof operation !== "string") return "not a span of a model call";
  if (!calls.includes(operation)) return `a span of ${operation.slice(0, 40)}`;
  const unreadable = unreadablePart(attributes, events);
  if (unreadable !== undefined) return `a message has ${unreadable}, which is not text, a tool call or an image`;
  const asked = [
    ...readSystem(attributes["gen_ai.system_instructions"]),
    ...readMessages(attributes["gen_ai.input.messages"]),
  ];
  const messages = asked.length > 0 ? asked : eventMessages(events);
  const reply = readMessages(attributes["gen_ai.output.messages"]).at(-1) ?? eventReply(events);
  if (messages.length === 0 || reply === undefined)
    return "a model call without its messages: turn on recording of content";
  const started = milliseconds(span.startTimeUnixNano);
  const failed = isObject(span.status) && span.status.code === 2;
  const tools = readTools(attributes["gen_ai.tool.definitions"]);
  add({
    id: `otel-${label(span.traceId)}-${label(span.spanId)}`,
    session: label(span.traceId),
    attempt: 0,
    role: label(attributes["gen_ai.agent.name"] ?? "agent"),
    api: "opentelemetry",
    model: label(attributes["gen_ai.response.model"] ?? attributes["gen_ai.request.model"] ?? "unknown"),
    startedMs: started,
    latencyMs: Math.max(0, milliseconds(span.endTimeUnixNano) - started),
    status: failed ? "failed" : "ok",
    error: failed ? label((span.status as { message?: unknown }).message ?? "failed") : null,
    stopReason: finishOf(attributes["gen_ai.response.finish_reasons"]),
    policyVersion: null,
    messages,
    tools: tools.length === 0 ? null : tools,
    reply,
    params: Object.fromEntries(
      Object.entries(attributes).flatMap(([name, value]) =>
        /^gen_ai\.request\.(temperature|top_p|top_k|max_tokens|seed)$/.test(name)
          ? [[name.slice("gen_ai.request.".length), value]]
          : [],
      ),
    ),
    metadata: { conversation: attributes["gen_ai.conversation.id"] ?? null },
    promptTokens: new Int32Array(0),
    tokens: new Int32Array(0),
    logprobs: new Float32Array(0),
  });
  return undefined;
}

const finishOf = (value: unknown): string | null => {
  const [first] = Array.isArray(value) ? value : [value];
  return typeof first === "string" ? (/^tool.calls?$/.test(first) ? "stop" : first) : null;
};

const detailsOf = (events: Events): Attributes =>
  events.find(({ name }) => name === "gen_ai.client.inference.operation.details")?.attributes ?? {};

/** Before version 1.37 of the conventions, each message was an event. */
function eventMessages(events: Events): TextMessage[] {
  return events.flatMap(({ name, attributes }) => {
    const [, kind] = /^gen_ai\.(system|user|assistant|tool)\.message$/.exec(name) ?? [];
    return kind === undefined ? [] : ofEvent(kind as TextMessage["role"], attributes);
  });
}

function eventReply(events: Events): TextMessage | undefined {
  const choice = events.findLast(({ name }) => name === "gen_ai.choice")?.attributes;
  if (choice === undefined) return undefined;
  const message = fromJson(choice.message);
  return ofEvent("assistant", isObject(message) ? message : choice)[0];
}

function ofEvent(role: TextMessage["role"], attributes: Attributes): TextMessage[] {
  const { content, id, tool_calls } = attributes;
  const toolCalls = listOf(fromJson(tool_calls)).map((call) => {
    const named = isObject(call.function) ? call.function : call;
    return toCall(call.id, named.name, named.arguments);
  });
  const message: TextMessage = { role, content: typeof content === "string" ? content : "" };
  if (toolCalls.length > 0) message.toolCalls = toolCalls;
  if (role === "tool" && typeof id === "string") message.toolCallId = id;
  return [message];
}

/** What would be missing in the messages. */
function unreadablePart(attributes: Attributes, events: Events): string | undefined {
  const parts = ["gen_ai.input.messages", "gen_ai.output.messages"].flatMap((name) =>
    listOf(fromJson(attributes[name])).flatMap((message) => listOf(message.parts)),
  );
  const part = parts.find(
    ({ type, ...rest }) => !readable.includes(label(type)) && addressOf({ type, ...rest }) === "",
  );
  if (part !== undefined) return `a part of type ${label(part.type).slice(0, 40) || "unknown"}`;
  const isText = (content: unknown) => content === undefined || content === null || typeof content === "string";
  const list = events.some(
    ({ name, attributes: { content } }) => /^gen_ai\.\w+\.message$/.test(name) && !isText(content),
  );
  return list ? "a list as its content" : undefined;
}

const readable = ["text", "reasoning", "tool_call", "tool_call_response"];

/** Of an image; empty for anything else. */
function addressOf({ type, modality, mime_type: mime, content, uri }: Record<string, unknown>): string {
  const isImage = modality === "image" || label(mime).startsWith("image/");
  if (!isImage) return "";
  if (type === "blob" && typeof content === "string") return `data:${label(mime) || "image/png"};base64,${content}`;
  return type === "uri" && /^https?:/i.test(label(uri)) ? label(uri) : "";
}

function readSystem(value: unknown): TextMessage[] {
  const given = fromJson(value);
  const text =
    typeof given === "string"
      ? given
      : listOf(given)
          .map(({ content }) => (typeof content === "string" ? content : ""))
          .join("");
  return text === "" ? [] : [{ role: "system", content: text }];
}

/** Messages with parts. Each result of a tool is a message of its own. */
function readMessages(value: unknown): ChatMessage[] {
  return listOf(fromJson(value)).flatMap(({ role, parts, content }) => {
    const author = role === "system" || role === "assistant" || role === "tool" ? role : "user";
    if (typeof content === "string" && parts === undefined) return [{ role: author, content }];
    const list = listOf(parts);
    const of = (type: string) => list.filter((part) => part.type === type);
    const results = of("tool_call_response").map(
      (part): TextMessage => ({
        ...{ role: "tool", toolCallId: label(part.id ?? "") },
        content: asText(part.response ?? part.result),
      }),
    );
    const said = normalizeContent(list.flatMap(toPart));
    const reasoning = of("reasoning")
      .map((part) => asText(part.content))
      .join("\n");
    const toolCalls = of("tool_call").map((part) => toCall(part.id, part.name, part.arguments));
    if (results.length > 0 && said === "" && toolCalls.length === 0) return results;
    const message: ChatMessage = { role: author, content: said };
    if (reasoning !== "") message.reasoning = reasoning;
    if (toolCalls.length > 0) message.toolCalls = toolCalls;
    return [message, ...results];
  });
}

function toPart(part: Record<string, unknown>): (TextPart | ImagePart)[] {
  if (part.type === "text") return [{ type: "text", text: asText(part.content) }];
  const address = addressOf(part);
  return address === "" ? [] : [{ type: "image", image: { address } }];
}

/** A name or id. `String` of an object that a client sends may throw. */
const label = (value: unknown): string =>
  typeof value === "string" ? value : typeof value === "number" ? String(value) : "";

const asText = (value: unknown) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));

function toCall(id: unknown, name: unknown, given: unknown): ToolCall {
  const parsed = fromJson(given);
  const call: ToolCall = { id: label(id ?? ""), name: label(name ?? ""), arguments: isObject(parsed) ? parsed : {} };
  return typeof given === "string" ? { ...call, argumentsText: given } : call;
}

function readTools(value: unknown): ToolDefinition[] {
  return listOf(fromJson(value)).flatMap((given) => {
    const tool = isObject(given.function) ? given.function : given;
    if (typeof tool.name !== "string") return [];
    const parameters = tool.parameters ?? tool.inputSchema ?? tool.input_schema;
    const definition: ToolDefinition = { name: tool.name };
    if (typeof tool.description === "string") definition.description = tool.description;
    if (isObject(parameters)) definition.parameters = parameters;
    return [definition];
  });
}

/** Structured attributes are JSON as text in most exporters. */
function fromJson(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function readAttributes(list: unknown): Attributes {
  return Object.fromEntries(listOf(list).map(({ key, value }) => [label(key), readValue(value, 0)]));
}

function readValue(value: unknown, depth: number): unknown {
  if (!isObject(value) || depth > 50) return null;
  const { stringValue, boolValue, intValue, doubleValue, arrayValue, kvlistValue } = value;
  if (stringValue !== undefined) return label(stringValue);
  if (boolValue !== undefined) return Boolean(boolValue);
  if (intValue !== undefined || doubleValue !== undefined) return Number(label(intValue ?? doubleValue));
  if (isObject(arrayValue)) return listOf(arrayValue.values).map((one) => readValue(one, depth + 1));
  if (!isObject(kvlistValue)) return null;
  return Object.fromEntries(
    listOf(kvlistValue.values).map((one) => [label(one.key), readValue(ownValue(one, "value"), depth + 1)]),
  );
}

const milliseconds = (nanoseconds: unknown): number => {
  const value = Number(label(nanoseconds)) / 1e6;
  return Number.isFinite(value) ? value : 0;
};
