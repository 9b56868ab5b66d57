/** OpenAI's chat completions and completions: requests as model calls, replies in their shapes, streams, log-probabilities. */
import { randomUUID } from "node:crypto";
import { isObject, zip } from "../base/values.ts";
import { cutAtStop } from "../chat/conversation.ts";
import { type ChatMessage, type ParsedReply, type ToolCall, toMessage } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import type { Generated } from "../rollout/types.ts";
import type { HttpExchange } from "./http.ts";
import { callModel, replyStream } from "./model-call.ts";
import {
  type Body,
  badParameter,
  checkParameters,
  commonRules,
  countJson,
  type JsonFormat,
  jsonFault,
  openaiContent,
  type Rules,
  readBoolean,
  readJsonFormat,
  readList,
  readMaxTokens,
  readModel,
  readNumber,
  readObject,
  readSampling,
  readString,
  readTools,
  type ToolForm,
  textOf,
  toOpenaiToolCalls,
  toolCall,
  toolContent,
  used,
  withJsonInstruction,
} from "./parameters.ts";
import type { CallContext, ModelCall, Notices } from "./types.ts";

// `POST /v1/chat/completions`

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
      return toMessage({ content: text() || (readString(message, "refusal") ?? ""), reasoning, toolCalls });
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

// `POST /v1/completions`

const completionRules: Rules = {
  ...commonRules,
  ...used("prompt add_special_tokens"),
  echo: { refused: "the client already has the prompt", unless: [false] },
  suffix: { refused: "models are not trained to fill in", unless: [""] },
  best_of: { refused: "choosing the best of several replies would hide what was sampled", unless: [1] },
};

/** Of one request: what answers it is in memory at once. */
const maxReplies = 1024;

/** The API's own default. */
const defaultMaxTokens = 16;

export async function openaiCompletions(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, completionRules, context.notices);
  const logprobs = readNumber(body, "logprobs", { min: 0, max: 20, integer: true });
  const tokenIds = readBoolean(body, "return_token_ids") ?? false;
  const n = readNumber(body, "n", { min: 1, max: 128, integer: true }) ?? 1;
  const params = readSampling(body, readMaxTokens(body, "max_tokens") ?? defaultMaxTokens);
  const id = `cmpl-${randomUUID()}`;
  const model = readModel(body);
  const metadata = readObject(body, "metadata") ?? {};
  const prompts = readPrompts(body);
  if (prompts.length * n > maxReplies) {
    throw badParameter("prompt", `${prompts.length} prompts with n ${n} ask for more than ${maxReplies} replies`);
  }
  const calls = prompts.map((prompt, index): ModelCall => {
    const callId = prompts.length === 1 ? id : `${id}.${index}`;
    return { id: callId, model, prompt, n, params, topLogprobs: logprobs ?? 0, metadata };
  });
  const head = { id, object: "text_completion", created: unixSeconds(), model };
  const clientText = ({ reply }: Generated) => cutAtStop(reply.content, params.stop);
  const choice = (generated: Generated, index: number, text: string) => ({
    index,
    text,
    finish_reason: generated.stopReason,
    logprobs: logprobs === undefined ? null : completionLogprobs(context.chat, generated),
    token_ids: tokenIds ? Array.from(generated.tokens) : undefined,
    prompt_token_ids: tokenIds ? Array.from(generated.promptTokens) : undefined,
  });

  if (!readBoolean(body, "stream")) {
    const replies = (await Promise.all(calls.map((call) => callModel(context, call)))).flat();
    const choices = replies.map((generated, index) => choice(generated, index, clientText(generated)));
    return exchange.sendJson(200, { ...head, choices, usage: completionsUsage(replies, n) });
  }

  const withUsage = readBoolean(readObject(body, "stream_options") ?? {}, "include_usage") ?? false;
  const send = (data: object) => {
    exchange.startEvents();
    exchange.sendEvent(JSON.stringify({ ...head, usage: withUsage ? null : undefined, ...data }));
  };
  const streams = Array.from({ length: calls.length * n }, () => replyStream(context.chat, { stops: params.stop }));
  const replies = await Promise.all(
    calls.map((call, at) =>
      callModel(context, call, (of, token) => {
        const index = at * n + of;
        const text = streams[index]?.push(token).content ?? "";
        if (text !== "") send({ choices: [{ index, text, logprobs: null, finish_reason: null }] });
      }),
    ),
  );
  for (const [index, generated] of replies.flat().entries()) {
    const rest = streams[index]?.end({ ...generated.reply, content: clientText(generated) });
    send({ choices: [choice(generated, index, rest?.content ?? "")] });
  }
  if (withUsage) send({ choices: [], usage: completionsUsage(replies.flat(), n) });
  exchange.sendEvent("[DONE]");
  exchange.end();
}

/** A string, a list of token ids, or a list of either. */
function readPrompts(body: Body): ModelCall["prompt"][] {
  const { prompt } = body;
  const addSpecial = readBoolean(body, "add_special_tokens") ?? true;
  const isList = Array.isArray(prompt) && prompt.length > 0 && !prompt.every(Number.isInteger);
  const prompts: unknown[] = isList ? prompt : [prompt];
  return prompts.map((each) => {
    if (typeof each === "string") return { text: each, addSpecial };
    if (Array.isArray(each) && each.length > 0 && each.every((id) => Number.isInteger(id) && id >= 0)) {
      return { tokens: Int32Array.from(each as number[]) };
    }
    throw badParameter("prompt", "prompt must be a string, a list of token ids, or a list of either");
  });
}

/** Counts each prompt once, not once per reply. */
function completionsUsage(replies: readonly Generated[], n: number) {
  const prompt = replies.reduce((sum, { promptTokens }, index) => sum + (index % n === 0 ? promptTokens.length : 0), 0);
  const completion = replies.reduce((sum, { tokens }) => sum + tokens.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

// Log-probabilities of sampled tokens in the shapes of OpenAI's APIs.

interface TokenLogprob {
  token: string;
  logprob: number;
  /** Null if the token is a part of a character. */
  bytes: number[] | null;
}

/** JSON has no infinity. */
const finite = (logprob: number) => Math.max(logprob, -9999);

function tokenLogprob(chat: Chat, token: number, logprob: number): TokenLogprob {
  const text = chat.decode([token]);
  return { token: text, logprob: finite(logprob), bytes: text.includes("\uFFFD") ? null : [...Buffer.from(text)] };
}

/** `choices[].logprobs.content` of chat completions; likewise of responses. */
export function chatLogprobs(
  chat: Chat,
  { tokens, logprobs, topLogprobs }: Pick<Generated, "tokens" | "logprobs" | "topLogprobs">,
): (TokenLogprob & { top_logprobs: TokenLogprob[] })[] {
  return zip(tokens, logprobs).map(([token, logprob], index) => {
    const top = topLogprobs?.[index];
    const alternatives = top ? zip(top.tokens, top.logprobs).map(([other, own]) => tokenLogprob(chat, other, own)) : [];
    return { ...tokenLogprob(chat, token, logprob), top_logprobs: alternatives };
  });
}

/** `choices[].logprobs` of completions. */
function completionLogprobs(chat: Chat, { tokens, logprobs, topLogprobs }: Generated) {
  const texts = Array.from(tokens, (token) => chat.decode([token]));
  let offset = 0;
  return {
    tokens: texts,
    token_logprobs: Array.from(logprobs, finite),
    top_logprobs:
      topLogprobs?.map((top) =>
        Object.fromEntries(zip(top.tokens, top.logprobs).map(([token, own]) => [chat.decode([token]), finite(own)])),
      ) ?? null,
    text_offset: texts.map((text) => {
      const start = offset;
      offset += text.length;
      return start;
    }),
  };
}
