/** `POST /v1/chat/completions` */
import { randomUUID } from "node:crypto";
import { cutAtStop } from "../../chat/conversations/bridge.ts";
import { type ChatMessage, type ParsedReply, type ToolCall, toMessage } from "../../chat/messages.ts";
import { isObject } from "../../is-object.ts";
import type { Generated } from "../../rollout/session/types.ts";
import type { Notices } from "../calls/model-call.ts";
import { type CallContext, callModel, type ModelCall } from "../calls/model-call.ts";
import { replyStream } from "../calls/stream-reply.ts";
import type { HttpExchange } from "../requests/http-exchange.ts";
import {
  type Body,
  badParameter,
  checkParameters,
  type Rules,
  readBoolean,
  readList,
  readModel,
  readNumber,
  readObject,
  readString,
  used,
} from "../requests/read-parameters.ts";
import { openaiContent, textOf, toolContent } from "./content-parts.ts";
import { countJson, type JsonFormat, jsonFault, readJsonFormat, withJsonInstruction } from "./json-replies.ts";
import { commonRules, readMaxTokens, readSampling } from "./sampling-parameters.ts";
import { chatLogprobs } from "./token-logprobs.ts";
import { readTools, type ToolForm, toOpenaiToolCalls, toolCall } from "./tools.ts";

const obsolete = "it is obsolete; use tools";
const newTurn = "the model always starts a new turn";

const chatRules: Rules = {
  ...commonRules,
  ...used("messages tools tool_choice parallel_tool_calls max_completion_tokens top_logprobs response_format"),
  ...used("reasoning_effort chat_template_kwargs"),
  verbosity: { ignored: "chat templates do not support it" },
  modalities: { refused: "only text is sampled", unless: [["text"]] },
  audio: { refused: "only text is sampled" },
  prediction: { refused: "replies are sampled freely" },
  web_search_options: { refused: "the gateway has no web search; offer it as one of the agent's own tools" },
  functions: { refused: obsolete, unless: [[]] },
  function_call: { refused: obsolete, unless: ["none"] },
  add_generation_prompt: { refused: newTurn, unless: [true] },
  continue_final_message: { refused: newTurn, unless: [false] },
};

/** `{ type: "function", function: { name, description, parameters } }` */
const chatTools: ToolForm = {
  choices: "none, auto, required or name a function",
  choice(value = "auto") {
    if (value === "none" || value === "auto" || value === "required") return value;
    const name = isObject(value) && isObject(value.function) ? value.function.name : undefined;
    return typeof name === "string" ? { name } : undefined;
  },
  definition: (tool) => (tool.type === "function" && isObject(tool.function) ? tool.function : undefined),
  isHosted: () => false,
};

interface ChatRequest extends ModelCall {
  logprobs: boolean;
  tokenIds: boolean;
  json: JsonFormat | undefined;
}

export async function openaiChat(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, chatRules, context.notices);
  const request = readChatRequest(body, context);
  if (readBoolean(body, "stream")) return streamChat(exchange, body, context, request);
  const replies = await callModel(context, request);
  // JSON leaves out what is undefined.
  exchange.sendJson(200, {
    id: request.id,
    object: "chat.completion",
    created: unixSeconds(),
    model: request.model,
    choices: replies.map((generated, index) => choice(context, request, generated, index)),
    usage: usageOf(replies),
    prompt_token_ids: request.tokenIds ? Array.from(replies[0].promptTokens) : undefined,
  });
}

function readChatRequest(body: Body, context: CallContext): ChatRequest {
  const topLogprobs = readNumber(body, "top_logprobs", { min: 0, max: 20, integer: true }) ?? 0;
  const logprobs = readBoolean(body, "logprobs") ?? false;
  if (topLogprobs > 0 && !logprobs) throw badParameter("top_logprobs", "top_logprobs requires logprobs: true");
  const tools = readTools(body, context, chatTools);
  const json = readJsonFormat(readObject(body, "response_format"), "response_format", context);
  const params = readSampling(body, readMaxTokens(body, "max_completion_tokens") ?? readMaxTokens(body, "max_tokens"));
  if (tools.length > 0) params.tools = tools;
  const effort = readString(body, "reasoning_effort");
  if (effort !== undefined) params.reasoningEffort = effort;
  const { enable_thinking: thinking, ...others } = readObject(body, "chat_template_kwargs") ?? {};
  const [other] = Object.keys(others);
  if (other !== undefined) {
    throw badParameter("chat_template_kwargs", `chat_template_kwargs.${other} is not supported`);
  }
  if (thinking !== undefined) params.thinking = thinking === true;
  return {
    id: `chatcmpl-${randomUUID()}`,
    model: readModel(body),
    prompt: { messages: withJsonInstruction(fromOpenaiMessages(body.messages, context.notices), json) },
    n: readNumber(body, "n", { min: 1, max: 128, integer: true }) ?? 1,
    wrongWith: json && ((reply) => jsonFault({ ...reply, content: cutAtStop(reply.content, params.stop) }, json)),
    params,
    topLogprobs,
    logprobs,
    json,
    tokenIds: readBoolean(body, "return_token_ids") ?? false,
    metadata: readObject(body, "metadata") ?? {},
  };
}

export const unixSeconds = () => Math.floor(Date.now() / 1000);

function usageOf(replies: readonly Generated[]) {
  const prompt = replies[0]?.promptTokens.length ?? 0;
  const completion = replies.reduce((total, { tokens }) => total + tokens.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

const finishReason = ({ stopReason, reply }: Generated) =>
  stopReason === "length" ? "length" : reply.toolCalls.length > 0 ? "tool_calls" : "stop";

const logprobsOf = ({ chat }: CallContext, { logprobs }: ChatRequest, generated: Generated) =>
  logprobs ? { content: chatLogprobs(chat, generated), refusal: null } : null;

const tokenIdsOf = ({ tokenIds }: ChatRequest, { tokens }: Generated) => (tokenIds ? Array.from(tokens) : undefined);

function choice(context: CallContext, request: ChatRequest, generated: Generated, index: number) {
  const { content, reasoning, toolCalls } = clientReply(context, request, generated);
  return {
    index,
    message: {
      role: "assistant",
      content: content === "" && toolCalls.length > 0 ? null : content,
      refusal: null,
      reasoning_content: reasoning || undefined,
      tool_calls: toolCalls.length > 0 ? toOpenaiToolCalls(toolCalls) : undefined,
    },
    logprobs: logprobsOf(context, request, generated),
    finish_reason: finishReason(generated),
    token_ids: tokenIdsOf(request, generated),
  };
}

/** The reply without its stop string. Counts whether it is the requested JSON. */
function clientReply({ notices }: CallContext, { params, json }: ChatRequest, { reply }: Generated): ParsedReply {
  const content = cutAtStop(reply.content, params.stop);
  const shown = content === reply.content ? reply : { ...reply, content };
  if (json) countJson(shown, json, notices);
  return shown;
}

async function streamChat(
  exchange: HttpExchange,
  body: Body,
  context: CallContext,
  request: ChatRequest,
): Promise<void> {
  const withUsage = readBoolean(readObject(body, "stream_options") ?? {}, "include_usage") ?? false;
  const { id, model, params, n } = request;
  const usage = withUsage ? null : undefined;
  const base = { id, object: "chat.completion.chunk", created: unixSeconds(), model, usage };
  const send = (index: number, delta: object, more: object = {}) => {
    const choices = [{ index, delta, logprobs: null, finish_reason: null, ...more }];
    exchange.sendEvent(JSON.stringify({ ...base, choices }));
  };
  const choices = Array.from({ length: n }, (_, index) => ({
    reader: replyStream(context.chat, { options: params, stops: params.stop }),
    send({ content, reasoning }: { content: string; reasoning: string }) {
      if (reasoning !== "") send(index, { reasoning_content: reasoning });
      if (content !== "") send(index, { content });
    },
  }));
  const start = () => {
    if (!exchange.startEvents()) return;
    for (const index of choices.keys()) send(index, { role: "assistant", content: "" });
  };
  const replies = await callModel(context, request, (index, token) => {
    start();
    const choice = choices[index];
    choice?.send(choice.reader.push(token));
  });
  start();
  for (const [index, { reader, send: sendText }] of choices.entries()) {
    const generated = replies[index];
    if (generated === undefined) continue;
    const reply = clientReply(context, request, generated);
    sendText(reader.end(reply));
    for (const [position, call] of toOpenaiToolCalls(reply.toolCalls).entries()) {
      send(index, { tool_calls: [{ index: position, ...call }] });
    }
    const logprobs = logprobsOf(context, request, generated);
    const token_ids = tokenIdsOf(request, generated);
    send(index, {}, { logprobs, finish_reason: finishReason(generated), token_ids });
  }
  if (withUsage) exchange.sendEvent(JSON.stringify({ ...base, choices: [], usage: usageOf(replies) }));
  exchange.sendEvent("[DONE]");
  exchange.end();
}

/** @throws GatewayError naming the message that cannot be read */
function fromOpenaiMessages(messages: unknown, notices: Notices): ChatMessage[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw badParameter("messages", "messages must be a list of at least one message");
  }
  return messages.map((message: unknown, index) => fromMessage(message, `messages[${index}]`, notices));
}

function fromMessage(message: unknown, at: string, notices: Notices): ChatMessage {
  if (!isObject(message)) throw badParameter(at, `${at} must be an object`);
  const text = () => textOf(message.content, `${at}.content`);
  const content = () => openaiContent(message.content, `${at}.content`, notices);
  switch (message.role) {
    case "system":
    case "developer":
    case "user":
      if (message.name !== undefined) {
        notices.add("ignored_parameter/messages.name", "names of users are ignored: chat templates do not write them");
      }
      return message.role === "user" ? { role: "user", content: content() } : { role: "system", content: text() };
    case "assistant": {
      if (message.function_call) throw badParameter(`${at}.function_call`, "function_call is obsolete; use tool_calls");
      if (message.audio) throw badParameter(`${at}.audio`, "audio is not supported");
      const reasoning = readString(message, "reasoning_content") ?? readString(message, "reasoning");
      const calls = readList(message, "tool_calls") ?? [];
      const toolCalls = calls.map((call, index) => fromToolCall(call, `${at}.tool_calls[${index}]`));
      return toMessage({ content: text(), reasoning, toolCalls });
    }
    case "tool": {
      const toolCallId = readString(message, "tool_call_id");
      if (toolCallId === undefined) throw badParameter(`${at}.tool_call_id`, `${at}.tool_call_id is missing`);
      const name = readString(message, "name");
      const result: ChatMessage = {
        role: "tool",
        content: toolContent(message.content, `${at}.content`, notices),
        toolCallId,
      };
      return name === undefined ? result : { ...result, name };
    }
    default:
      throw badParameter(
        `${at}.role`,
        `${at}.role is ${JSON.stringify(message.role)}; it must be system, developer, user, assistant or tool`,
      );
  }
}

function fromToolCall(call: unknown, at: string): ToolCall {
  const { id, function: given } = isObject(call) ? call : {};
  if (!isObject(given) || typeof id !== "string" || typeof given.name !== "string") {
    throw badParameter(at, `${at} must be a function call with id, name and arguments`);
  }
  return toolCall(id, given.name, given.arguments, `${at}.function.arguments`);
}
