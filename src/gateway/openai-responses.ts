/** OpenAI's responses API, as `POST /v1/responses`: stateless, so a request has the whole conversation. */
import { randomUUID } from "node:crypto";
import { isObject } from "../base/values.ts";
import { thoughtAsText } from "../chat/conversation.ts";
import { type ChatMessage, type ToolCall, toMessage } from "../chat/messages.ts";
import type { Generated } from "../rollout/types.ts";
import type { HttpExchange } from "./http.ts";
import { callModel, replyStream } from "./model-call.ts";
import { chatLogprobs, unixSeconds } from "./openai-chat.ts";
import {
  argumentsText,
  type Body,
  badParameter,
  checkParameters,
  countJson,
  type JsonFormat,
  jsonFault,
  noEffect,
  openaiContent,
  type Rules,
  readBoolean,
  readJsonFormat,
  readMaxTokens,
  readModel,
  readNumber,
  readObject,
  readSampling,
  readString,
  readStrings,
  readTools,
  storedAsConfigured,
  type ToolForm,
  textOf,
  toolCall,
  used,
  withJsonInstruction,
} from "./parameters.ts";
import type { CallContext, ModelCall, Notices } from "./types.ts";

const noMemory = "the gateway does not keep conversations; send the whole history as input";

const responsesRules: Rules = {
  ...used("model input instructions stream tools tool_choice parallel_tool_calls max_output_tokens temperature top_p"),
  ...used("top_logprobs include text reasoning metadata"),
  store: storedAsConfigured,
  user: { ignored: noEffect },
  client_metadata: { ignored: noEffect },
  service_tier: { ignored: noEffect },
  safety_identifier: { ignored: noEffect },
  prompt_cache_key: { ignored: noEffect },
  prompt_cache_retention: { ignored: noEffect },
  stream_options: { ignored: "events are never obfuscated" },
  max_tool_calls: { ignored: "the client calls its tools itself" },
  truncation: { refused: "a prompt that is too long is an error", unless: ["disabled"] },
  background: { refused: "replies are sampled while the client waits", unless: [false] },
  previous_response_id: { refused: noMemory },
  conversation: { refused: noMemory },
  prompt: { refused: "the gateway has no stored prompts" },
};

/** `{ type: "function", name, description, parameters }` */
const responsesTools: ToolForm = {
  choices: "none, auto, required or an object",
  choice(value = "auto") {
    if (value === "none" || value === "auto" || value === "required") return value;
    return isObject(value) ? { name: value.name ?? value.type } : undefined;
  },
  definition: (tool) => (tool.type === "function" ? tool : undefined),
  isHosted: (type) => hostedTools.has(type),
};

/** Tools that OpenAI's service runs or that group its own; agents offer some of them unasked. */
const hostedTools: ReadonlySet<unknown> = new Set([
  "code_interpreter",
  "file_search",
  "image_generation",
  "mcp",
  "namespace",
  "tool_search",
  "web_search",
  "web_search_preview",
]);

interface ResponseRequest extends ModelCall {
  logprobs: boolean;
  json: JsonFormat | undefined;
  /** Parameters that the response repeats. */
  echoed: Record<string, unknown>;
}

export async function openaiResponses(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, responsesRules, context.notices);
  const request = readRequest(body, context);
  if (readBoolean(body, "stream")) return streamResponse(exchange, context, request);
  const [generated] = await callModel(context, request);
  if (request.json) countJson(generated.reply, request.json, context.notices);
  const output = outputOf(context, request, generated);
  rememberItems(context, output);
  exchange.sendJson(200, toResponse(request, generated, output));
}

function readRequest(body: Body, context: CallContext): ResponseRequest {
  const instructions = readString(body, "instructions");
  const json = readJsonFormat(readObject(readObject(body, "text") ?? {}, "format"), "text.format", context);
  const messages = fromResponseItems(body.input, context.notices, (item, at) => knownItem(context, item, at));
  if (instructions !== undefined) messages.unshift({ role: "system", content: instructions });
  const topLogprobs = readNumber(body, "top_logprobs", { min: 0, max: 20, integer: true }) ?? 0;
  const include = readStrings(body, "include") ?? [];
  const params = readSampling(body, readMaxTokens(body, "max_output_tokens"));
  const tools = readTools(body, context, responsesTools);
  if (tools.length > 0) params.tools = tools;
  const effort = readString(readObject(body, "reasoning") ?? {}, "effort");
  if (effort === "none") params.thinking = false;
  else if (effort !== undefined) params.reasoningEffort = effort;
  return {
    id: `resp_${randomUUID().replaceAll("-", "")}`,
    model: readModel(body),
    prompt: { messages: withJsonInstruction(messages, json) },
    n: 1,
    params,
    topLogprobs,
    json,
    wrongWith: json && ((reply) => jsonFault(reply, json)),
    logprobs: topLogprobs > 0 || include.includes("message.output_text.logprobs"),
    metadata: readObject(body, "metadata") ?? {},
    echoed: {
      instructions: instructions ?? null,
      max_output_tokens: body.max_output_tokens ?? null,
      parallel_tool_calls: body.parallel_tool_calls ?? true,
      reasoning: body.reasoning ?? { effort: null, summary: null },
      temperature: body.temperature ?? null,
      text: body.text ?? { format: { type: "text" } },
      tool_choice: body.tool_choice ?? "auto",
      tools: body.tools ?? [],
      top_p: body.top_p ?? null,
      metadata: body.metadata ?? {},
    },
  };
}

type Status = "in_progress" | "completed" | "incomplete";
type TextPart = ReturnType<typeof textPart>;

const textPart = (text: string, logprobs: unknown[]) => ({ type: "output_text", text, annotations: [], logprobs });

const messageItem = ({ id }: ModelCall, status: Status, content: TextPart[]) => ({
  id: id.replace("resp", "msg"),
  type: "message" as const,
  status,
  role: "assistant",
  content,
});

const reasoningItem = ({ id }: ModelCall, text: string) => ({
  id: id.replace("resp", "rs"),
  type: "reasoning" as const,
  summary: [],
  content: [{ type: "reasoning_text", text }],
});

const callItem = (call: Generated["reply"]["toolCalls"][number]) => ({
  id: `fc_${call.id}`,
  type: "function_call" as const,
  status: "completed",
  call_id: call.id,
  name: call.name,
  arguments: argumentsText(call),
});

type Item = ReturnType<typeof messageItem> | ReturnType<typeof reasoningItem> | ReturnType<typeof callItem>;

function outputOf({ chat }: CallContext, request: ResponseRequest, generated: Generated): Item[] {
  const { reasoning, content, toolCalls } = generated.reply;
  const items: Item[] = [];
  if (reasoning) items.push(reasoningItem(request, reasoning));
  if (content !== "" || toolCalls.length === 0) {
    const logprobs = request.logprobs ? chatLogprobs(chat, generated) : [];
    const status = generated.stopReason === "length" ? "incomplete" : "completed";
    items.push(messageItem(request, status, [textPart(content, logprobs)]));
  }
  return [...items, ...toolCalls.map(callItem)];
}

// Clients such as the AI SDK send earlier items as references to their ids, since OpenAI's service stores them.

/** The items of each session, by the caller's role and their id. */
const items = new WeakMap<object, Map<string, Item>>();

/** In an endless session the oldest are dropped. */
const maxItems = 10_000;

const itemKey = (role: string | undefined, id: unknown) => `${role ?? ""} ${id}`;

function rememberItems({ session, role }: CallContext, output: readonly Item[]): void {
  const known = items.get(session) ?? new Map<string, Item>();
  items.set(session, known);
  for (const item of output) known.set(itemKey(role, item.id), item);
  for (const key of known.keys()) {
    if (known.size <= maxItems) break;
    known.delete(key);
  }
}

function knownItem({ session, role }: CallContext, { id }: Body, at: string): Body {
  const item = items.get(session)?.get(itemKey(role, id));
  if (item !== undefined) return item;
  throw badParameter(
    at,
    `${at} refers to the item ${id}, which this session did not sample. Send the item itself: in the AI SDK, use ` +
      "openai.chat(...) or providerOptions.openai.store=false",
  );
}

const responseHead = ({ id, model, echoed }: ResponseRequest, status: Status) => ({
  id,
  object: "response",
  created_at: unixSeconds(),
  status,
  background: false,
  error: null,
  incomplete_details: null as unknown,
  model,
  output: [] as Item[],
  previous_response_id: null,
  store: false,
  truncation: "disabled",
  usage: null as unknown,
  user: null,
  ...echoed,
});

function toResponse(request: ResponseRequest, { stopReason, promptTokens, tokens }: Generated, output: Item[]) {
  const isCut = stopReason === "length";
  return {
    ...responseHead(request, isCut ? "incomplete" : "completed"),
    incomplete_details: isCut ? { reason: "max_output_tokens" } : null,
    output,
    usage: {
      input_tokens: promptTokens.length,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: tokens.length,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: promptTokens.length + tokens.length,
    },
  };
}

async function streamResponse(exchange: HttpExchange, context: CallContext, request: ResponseRequest): Promise<void> {
  let sequence = 0;
  const send = (type: string, fields: object) =>
    exchange.sendEvent(JSON.stringify({ type, sequence_number: sequence++, ...fields }), type);
  const stream = replyStream(context.chat, { options: request.params });
  const message = messageItem(request, "in_progress", []);
  const thought = { ...reasoningItem(request, ""), content: [] };
  /** The items that were announced so far, in their order. */
  const announced = new Set<string>();

  const start = () => {
    if (!exchange.startEvents()) return;
    send("response.created", { response: responseHead(request, "in_progress") });
    send("response.in_progress", { response: responseHead(request, "in_progress") });
  };
  /** Announces the item and its only part; returns their place. */
  const announce = (item: typeof message | typeof thought, part: object) => {
    const isNew = !announced.has(item.id);
    announced.add(item.id);
    const output_index = [...announced].indexOf(item.id);
    const at = { item_id: item.id, output_index, content_index: 0 };
    if (isNew) {
      send("response.output_item.added", { output_index, item });
      send("response.content_part.added", { ...at, part });
    }
    return at;
  };
  const announceMessage = () => announce(message, textPart("", []));
  const sendText = ({ reasoning, content }: { reasoning: string; content: string }) => {
    if (reasoning !== "") {
      const at = announce(thought, { type: "reasoning_text", text: "" });
      send("response.reasoning_text.delta", { ...at, delta: reasoning });
    }
    if (content !== "") send("response.output_text.delta", { ...announceMessage(), delta: content, logprobs: [] });
  };

  const [generated] = await callModel(context, request, (_, token) => {
    start();
    sendText(stream.push(token));
  });
  start();
  sendText(stream.end(generated.reply));
  if (request.json) countJson(generated.reply, request.json, context.notices);
  const { reply } = generated;
  const wasText = reply.reasoning && !announced.has(thought.id);
  const shown = wasText ? { ...reply, reasoning: undefined, content: thoughtAsText(reply) } : reply;
  const order = [...announced];
  const place = ({ id }: Item) => (announced.has(id) ? order.indexOf(id) : order.length);
  const output = outputOf(context, request, { ...generated, reply: shown });
  output.sort((one, other) => place(one) - place(other));
  for (const [output_index, item] of output.entries()) {
    const at = { item_id: item.id, output_index, content_index: 0 };
    if (item.type === "reasoning") {
      send("response.reasoning_text.done", { ...at, text: generated.reply.reasoning });
    } else if (item.type === "message") {
      announceMessage();
      for (const part of item.content) {
        send("response.output_text.done", { ...at, text: part.text, logprobs: part.logprobs });
        send("response.content_part.done", { ...at, part });
      }
    } else {
      const { name, arguments: text } = item;
      send("response.output_item.added", { output_index, item: { ...item, status: "in_progress", arguments: "" } });
      send("response.function_call_arguments.delta", { item_id: item.id, output_index, delta: text });
      send("response.function_call_arguments.done", { item_id: item.id, output_index, name, arguments: text });
    }
    send("response.output_item.done", { output_index, item });
  }
  rememberItems(context, output);
  const response = toResponse(request, generated, output);
  send(`response.${response.status}`, { response });
  exchange.end();
}

// Reads the input items of OpenAI's responses API as a conversation.

interface AssistantTurn {
  reasoning: string;
  content: string | undefined;
  toolCalls: ToolCall[];
}

/**
 * Consecutive thinking, text and calls were one reply and become one message.
 *
 * @param known the item that a reference names
 * @throws GatewayError naming the item that cannot be read
 */
function fromResponseItems(input: unknown, notices: Notices, known: (item: Body, at: string) => Body): ChatMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!Array.isArray(input) || input.length === 0) {
    throw badParameter("input", "input must be a string or a list of items");
  }
  const messages: ChatMessage[] = [];
  let turn: AssistantTurn | undefined;
  const end = () => {
    if (turn) messages.push(toMessage({ ...turn, content: turn.content ?? "" }));
    turn = undefined;
  };
  const current = (): AssistantTurn => {
    turn ??= { reasoning: "", content: undefined, toolCalls: [] };
    return turn;
  };
  /** Thinking and text come before calls, and a reply has one text. */
  const currentOrNext = (): AssistantTurn => {
    if (turn && (turn.content !== undefined || turn.toolCalls.length > 0)) end();
    return current();
  };

  for (const [index, given] of (input as unknown[]).entries()) {
    const at = `input[${index}]`;
    const item = isObject(given) && given.type === "item_reference" ? known(given, at) : given;
    if (!isObject(item)) throw badParameter(at, `${at} must be an object`);
    switch (item.type ?? "message") {
      case "message": {
        const where = `${at}.content`;
        if (item.role === "assistant") currentOrNext().content = textOf(item.content, where);
        else {
          end();
          const role = roleOf(item, at);
          const content = role === "user" ? openaiContent(item.content, where, notices) : textOf(item.content, where);
          messages.push({ role, content });
        }
        break;
      }
      case "reasoning":
        currentOrNext().reasoning += thinkingOf(item, at);
        break;
      case "function_call":
        if (typeof item.call_id !== "string" || typeof item.name !== "string") {
          throw badParameter(at, `${at} must be a function call with call_id, name and arguments`);
        }
        current().toolCalls.push(toolCall(item.call_id, item.name, item.arguments, `${at}.arguments`));
        break;
      case "function_call_output":
        end();
        if (typeof item.call_id !== "string") throw badParameter(at, `${at}.call_id is missing`);
        messages.push({
          role: "tool",
          content: openaiContent(item.output, `${at}.output`, notices),
          toolCallId: item.call_id,
        });
        break;
      default:
        throw badParameter(at, `${at} is of type ${item.type}, which is not supported`);
    }
  }
  end();
  return messages;
}

function roleOf({ role }: Body, at: string): "system" | "user" {
  if (role === "user") return "user";
  if (role === "system" || role === "developer") return "system";
  const message = `${at}.role is ${JSON.stringify(role)}; it must be system, developer, user or assistant`;
  throw badParameter(`${at}.role`, message);
}

/** Thinking of open models is plain content. A summary or an encrypted text is not what the model thought. */
function thinkingOf({ content, encrypted_content: encrypted }: Body, at: string): string {
  if (encrypted) throw badParameter(at, `${at} is encrypted thinking, which cannot be read`);
  return textOf(content, `${at}.content`);
}
