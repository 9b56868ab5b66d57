/** `POST /v1/chat/completions` */
import { randomUUID } from "node:crypto";
import { cutAtStop } from "../../chat/cut-at-stop.ts";
import type { ParsedReply } from "../../chat/messages.ts";
import type { Generated, GenerateParams } from "../../rollout/generate.ts";
import type { HttpExchange } from "../http-exchange.ts";
import { type CallContext, callModel, type ModelCall } from "../model-call.ts";
import {
  type Body,
  badParameter,
  checkParameters,
  isObject,
  type Rule,
  readBoolean,
  readList,
  readName,
  readNumber,
  readObject,
  readString,
} from "../read-parameters.ts";
import { replyStream } from "../stream-reply.ts";
import { checkedWish, countJson, jsonFault } from "./check-json.ts";
import { demand, type JsonWish, withJsonInstruction } from "./guarantees.ts";
import { fromOpenaiMessages, fromOpenaiTools, toOpenaiToolCalls } from "./openai-messages.ts";
import { commonRules, readSampling } from "./sampling-parameters.ts";
import { chatLogprobs } from "./token-logprobs.ts";

const textOnly = "only text is sampled";
const obsolete = "it is obsolete; use tools";

const chatRules: Readonly<Record<string, Rule>> = {
  ...commonRules,
  messages: "used",
  tools: "used",
  tool_choice: "used",
  parallel_tool_calls: "used",
  max_completion_tokens: "used",
  top_logprobs: "used",
  response_format: "used",
  reasoning_effort: "used",
  chat_template_kwargs: "used",
  verbosity: { ignored: "chat templates have no place for it" },
  modalities: { refused: textOnly, unless: [["text"]] },
  audio: { refused: textOnly },
  prediction: { refused: "replies are sampled freely" },
  web_search_options: { refused: "there is no web search; offer it as a tool of the agent's own" },
  functions: { refused: obsolete, unless: [[]] },
  function_call: { refused: obsolete, unless: ["none"] },
  add_generation_prompt: { refused: "the model always begins a turn of its own", unless: [true] },
  continue_final_message: { refused: "the model always begins a turn of its own", unless: [false] },
};

interface ChatRequest extends ModelCall {
  logprobs: boolean;
  tokenIds: boolean;
  json: JsonWish | undefined;
}

export async function openaiChat(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, chatRules, context.notices);
  const request = readChatRequest(body, context);
  if (readBoolean(body, "stream")) return streamChat(exchange, body, context, request);
  const replies = await callModel(context, request);
  // What is undefined is not sent.
  exchange.sendJson(200, {
    id: request.id,
    object: "chat.completion",
    created: now(),
    model: request.model,
    choices: replies.map((generated, index) => choice(context, request, generated, index)),
    usage: usageOf(replies),
    prompt_token_ids: request.tokenIds ? Array.from(replies[0]!.promptTokens) : undefined,
  });
}

function readChatRequest(body: Body, context: CallContext): ChatRequest {
  const { notices } = context;
  const maxTokens =
    readNumber(body, "max_completion_tokens", { min: 1, integer: true }) ??
    readNumber(body, "max_tokens", { min: 1, integer: true });
  const topLogprobs = readNumber(body, "top_logprobs", { min: 0, max: 20, integer: true }) ?? 0;
  const logprobs = readBoolean(body, "logprobs") ?? false;
  if (topLogprobs > 0 && !logprobs) throw badParameter("top_logprobs", "top_logprobs needs logprobs: true");
  const choice = readToolChoice(body.tool_choice, context);
  const tools = choice === "none" ? [] : fromOpenaiTools(readList(body, "tools"), notices);
  if (tools.length > 0 && readBoolean(body, "parallel_tool_calls") === false) {
    notices.add("ignored_parameter/parallel_tool_calls", "parallel_tool_calls=false is not enforced");
  }
  const json = readResponseFormat(readObject(body, "response_format"), context);
  const messages = withJsonInstruction(fromOpenaiMessages(body.messages, notices), json);
  const sampling = readSampling(body, maxTokens);
  return {
    id: `chatcmpl-${randomUUID()}`,
    model: readName(body, "model") ?? "",
    prompt: { messages },
    n: readNumber(body, "n", { min: 1, max: 128, integer: true }) ?? 1,
    ...(json ? { wrongWith: ({ content }) => jsonFault(cutAtStop(content, sampling.stop), json) } : {}),
    params: {
      ...sampling,
      ...(tools.length > 0 ? { tools } : {}),
      ...thinkingOptions(body),
    },
    topLogprobs,
    logprobs,
    json,
    tokenIds: readBoolean(body, "return_token_ids") ?? false,
    metadata: readObject(body, "metadata") ?? {},
  };
}

function readToolChoice(choice: unknown, context: CallContext): "none" | "auto" {
  if (choice === undefined || choice === null || choice === "auto") return "auto";
  if (choice === "none") return "none";
  const name = isObject(choice) && isObject(choice.function) ? choice.function.name : undefined;
  if (choice !== "required" && typeof name !== "string") {
    throw badParameter("tool_choice", "tool_choice must be none, auto, required or name a function");
  }
  demand(context, "tool_choice", choice === "required" ? "that a tool is called" : `that the tool ${name} is called`);
  return "auto";
}

function readResponseFormat(format: Body | undefined, context: CallContext): JsonWish | undefined {
  if (format === undefined || format.type === "text") return undefined;
  if (format.type === "json_object") return { schema: undefined };
  const { schema, strict } = isObject(format.json_schema) ? format.json_schema : {};
  if (format.type !== "json_schema" || !isObject(schema)) {
    throw badParameter("response_format", "response_format must be text, json_object, or json_schema with a schema");
  }
  if (strict === true) demand(context, "response_format.json_schema.strict", "a reply that keeps to a schema");
  return checkedWish(schema, "response_format.json_schema.schema");
}

function thinkingOptions(body: Body): GenerateParams {
  const effort = readString(body, "reasoning_effort");
  const template = readObject(body, "chat_template_kwargs") ?? {};
  const { enable_thinking: thinking, ...others } = template;
  if (Object.keys(others).length > 0) {
    throw badParameter("chat_template_kwargs", `chat_template_kwargs.${Object.keys(others)[0]} is not supported`);
  }
  return {
    ...(effort === undefined ? {} : { reasoningEffort: effort }),
    ...(thinking === undefined ? {} : { thinking: thinking === true }),
  };
}

const now = () => Math.floor(Date.now() / 1000);

function usageOf(replies: readonly Generated[]) {
  const prompt = replies[0]?.promptTokens.length ?? 0;
  const completion = replies.reduce((total, { tokens }) => total + tokens.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

const finishReason = ({ stopReason, reply }: Generated) =>
  stopReason === "length" ? "length" : reply.toolCalls.length > 0 ? "tool_calls" : "stop";

function choice(context: CallContext, request: ChatRequest, generated: Generated, index: number) {
  const reply = asGiven(context, request, generated);
  return {
    index,
    message: {
      role: "assistant",
      content: reply.content === "" && reply.toolCalls.length > 0 ? null : reply.content,
      refusal: null,
      reasoning_content: reply.reasoning || undefined,
      tool_calls: reply.toolCalls.length > 0 ? toOpenaiToolCalls(reply.toolCalls) : undefined,
    },
    logprobs: request.logprobs ? { content: chatLogprobs(context.chat, generated), refusal: null } : null,
    finish_reason: finishReason(generated),
    token_ids: request.tokenIds ? Array.from(generated.tokens) : undefined,
  };
}

/** The reply as the client gets it. */
function asGiven({ notices }: CallContext, { params, json }: ChatRequest, { reply }: Generated): ParsedReply {
  const content = cutAtStop(reply.content, params.stop);
  if (json) countJson(content, json, notices);
  return content === reply.content ? reply : { ...reply, content };
}

async function streamChat(
  exchange: HttpExchange,
  body: Body,
  context: CallContext,
  request: ChatRequest,
): Promise<void> {
  const withUsage = readBoolean(readObject(body, "stream_options") ?? {}, "include_usage") ?? false;
  const { id, model } = request;
  const base = { id, object: "chat.completion.chunk", created: now(), model, ...(withUsage ? { usage: null } : {}) };
  const send = (index: number, delta: object, more: object = {}) =>
    exchange.sendEvent(
      JSON.stringify({ ...base, choices: [{ index, delta, logprobs: null, finish_reason: null, ...more }] }),
    );
  const streams = Array.from({ length: request.n }, () =>
    replyStream(context.chat, { options: request.params, stops: request.params.stop }),
  );
  let started = false;
  const start = () => {
    if (started) return;
    started = true;
    exchange.startEvents();
    for (let index = 0; index < request.n; index++) send(index, { role: "assistant", content: "" });
  };
  const tell = (index: number, { content, reasoning }: { content: string; reasoning: string }) => {
    if (reasoning !== "") send(index, { reasoning_content: reasoning });
    if (content !== "") send(index, { content });
  };
  const replies = await callModel(context, request, (index, token) => {
    start();
    tell(index, streams[index]!.push(token));
  });
  start();
  for (const [index, generated] of replies.entries()) {
    const reply = asGiven(context, request, generated);
    tell(index, streams[index]!.end(reply));
    for (const [position, call] of toOpenaiToolCalls(reply.toolCalls).entries()) {
      send(index, { tool_calls: [{ index: position, ...call }] });
    }
    const logprobs = request.logprobs ? { content: chatLogprobs(context.chat, generated), refusal: null } : null;
    const tokenIds = request.tokenIds ? { token_ids: Array.from(generated.tokens) } : {};
    send(index, {}, { logprobs, finish_reason: finishReason(generated), ...tokenIds });
  }
  if (withUsage) exchange.sendEvent(JSON.stringify({ ...base, choices: [], usage: usageOf(replies) }));
  exchange.sendEvent("[DONE]");
  exchange.end();
}
