/** `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API. */
import { randomUUID } from "node:crypto";
import { writtenJson } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import { cutAtStop } from "../chat/conversation.ts";
import { renderWithImages } from "../chat/images.ts";
import { type ChatMessage, type ImagePart, type TextPart, type ToolCall, toMessage } from "../chat/messages.ts";
import type { Generated } from "../rollout/types.ts";
import type { HttpExchange } from "./http.ts";
import { callModel, replyStream } from "./model-call.ts";
import {
  anthropicContent,
  anthropicImage,
  type Body,
  badParameter,
  checkParameters,
  joinLines,
  noEffect,
  type Rules,
  readBoolean,
  readList,
  readMaxTokens,
  readModel,
  readObject,
  readSampling,
  readTools,
  type ToolForm,
  textOf,
  toolCall,
  used,
} from "./parameters.ts";
import type { CallContext, ModelCall, Notices } from "./types.ts";

const messagesRules: Rules = {
  ...used("model messages system max_tokens temperature top_p top_k stop_sequences stream tools tool_choice thinking"),
  ...used("metadata"),
  service_tier: { ignored: noEffect },
  inference_geo: { ignored: noEffect },
  cache_control: { ignored: noEffect },
  output_config: { ignored: "replies are sampled freely" },
  context_management: { ignored: "histories are used unchanged" },
  betas: { ignored: noEffect },
  container: { refused: "the gateway has no containers" },
  mcp_servers: { refused: "connect the agent to its servers, and offer their tools like any others" },
};

const messagesTools: ToolForm = {
  choices: "of type auto, any, tool or none",
  choice(value = { type: "auto" }) {
    const { type, name } = isObject(value) ? value : {};
    if (type === "none" || type === "auto") return type;
    if (type === "any") return "required";
    return type === "tool" ? { name } : undefined;
  },
  definition: (tool) => ((tool.type ?? "custom") === "custom" ? { ...tool, parameters: tool.input_schema } : undefined),
  isHosted: (type) => typeof type === "string" && /^(web_search|web_fetch|code_execution|tool_search)_/.test(type),
};

interface MessagesCall extends ModelCall {
  prompt: { messages: readonly ChatMessage[] };
}

export async function anthropicMessages(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, messagesRules, context.notices);
  const call = readCall(body, context);
  if (readBoolean(body, "stream")) return streamMessage(exchange, context, call);
  const [generated] = await callModel(context, call);
  exchange.sendJson(200, toAnthropicMessage(call, generated));
}

export async function anthropicCountTokens(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, messagesRules, context.notices);
  const { prompt, params } = readCall({ max_tokens: 1, ...body }, context);
  const { chat, vision, signal } = context;
  const { tokens } = await renderWithImages(chat, vision, prompt.messages, {
    ...params,
    signal,
    guardText: chat.guardsText,
  });
  exchange.sendJson(200, { input_tokens: tokens.length });
}

function readCall(body: Body, context: CallContext): MessagesCall {
  const maxTokens = readMaxTokens(body, "max_tokens");
  if (maxTokens === undefined) throw badParameter("max_tokens", "max_tokens: field required");
  const params = readSampling(body, maxTokens, { maxTemperature: 1, stop: "stop_sequences" });
  const tools = readTools(body, context, messagesTools);
  if (tools.length > 0) params.tools = tools;
  const thinking = readObject(body, "thinking")?.type;
  if (thinking === "disabled") params.thinking = false;
  if (thinking === "enabled") {
    params.thinking = true;
    const text = "thinking.budget_tokens is not enforced; max_tokens is";
    context.notices.add("ignored_parameter/thinking.budget_tokens", text);
  }
  return {
    id: `msg_${randomUUID().replaceAll("-", "")}`,
    model: readModel(body),
    prompt: { messages: readMessages(body, context.notices) },
    n: 1,
    params,
    topLogprobs: 0,
    metadata: readObject(body, "metadata") ?? {},
  };
}

function readMessages(body: Body, notices: Notices): ChatMessage[] {
  const list = readList(body, "messages") ?? [];
  if (list.length === 0) throw badParameter("messages", "messages: at least one is required");
  const system = textOf(body.system, "system");
  const messages = list.flatMap((message, index) => fromMessage(message, `messages.${index}`, notices));
  if (messages.at(-1)?.role === "assistant") {
    throw badParameter("messages", "the last message is the assistant's, but the model always starts a new turn");
  }
  return system === "" ? messages : [{ role: "system", content: system }, ...messages];
}

function fromMessage(message: unknown, at: string, notices: Notices): ChatMessage[] {
  if (!isObject(message)) throw badParameter(at, `${at} must be an object`);
  const { role, content } = message;
  if (role === "system") return [{ role, content: textOf(content, `${at}.content`) }];
  if (role !== "user" && role !== "assistant") {
    throw badParameter(`${at}.role`, `${at}.role is ${JSON.stringify(role)}; it must be user or assistant`);
  }
  const list: unknown[] = Array.isArray(content) ? content : [];
  const blocks = typeof content === "string" ? [{ type: "text", text: content }] : list;
  const located = blocks.map((block, index) => {
    const where = `${at}.content.${index}`;
    if (!isObject(block)) throw badParameter(where, `${where} must be an object`);
    return { block, where };
  });
  return role === "user" ? fromUser(located, notices) : [fromAssistant(located, notices)];
}

type Blocks = readonly { block: Body; where: string }[];

/** Tool results become messages of their own, before the user's text and images. */
function fromUser(blocks: Blocks, notices: Notices): ChatMessage[] {
  const results: ChatMessage[] = [];
  const parts: (TextPart | ImagePart)[] = [];
  for (const { block, where } of blocks) {
    const { type, text, tool_use_id: toolCallId } = block;
    const image = anthropicImage(block, where);
    if (image !== undefined) parts.push(image);
    else if (type === "text" && typeof text === "string") parts.push({ type: "text", text });
    else if (type === "tool_result" && typeof toolCallId === "string") {
      if (block.is_error === true) {
        notices.add("ignored_parameter/tool_result.is_error", "is_error is ignored: chat templates do not support it");
      }
      results.push({ role: "tool", content: anthropicContent(block.content, `${where}.content`), toolCallId });
    } else throw badParameter(where, `${where} is of type ${type}; only text, images and tool results are supported`);
  }
  return parts.length > 0 ? [...results, { role: "user", content: joinLines(parts) }] : results;
}

function fromAssistant(blocks: Blocks, notices: Notices): ChatMessage {
  let content = "";
  let reasoning = "";
  const toolCalls: ToolCall[] = [];
  for (const { block, where } of blocks) {
    const { type, text, thinking, id, name, input } = block;
    if (type === "text" && typeof text === "string") content += text;
    else if (type === "thinking" && typeof thinking === "string") reasoning += thinking;
    else if (type === "tool_use" && typeof id === "string" && typeof name === "string") {
      toolCalls.push(toolCall(id, name, isObject(input) ? (writtenJson(input) ?? JSON.stringify(input)) : "", where));
    } else if (type === "redacted_thinking") {
      const text = "redacted thinking is left out: only the service that encrypted it can read it";
      notices.add("ignored_parameter/redacted_thinking", text);
    } else throw badParameter(where, `${where} is of type ${type}, which is not supported`);
  }
  return toMessage({ content, reasoning, toolCalls });
}

// A signature proves that a service wrote the thinking. Here the tokens prove it.
const thinkingBlock = (thinking: string) => ({ type: "thinking", thinking, signature: "" });

function toAnthropicMessage(call: ModelCall, generated: Generated) {
  const { reasoning, content, toolCalls } = generated.reply;
  const text = cutAtStop(content, call.params.stop);
  const blocks: object[] = [];
  if (reasoning) blocks.push(thinkingBlock(reasoning));
  if (text !== "") blocks.push({ type: "text", text });
  for (const { id, name, arguments: input } of toolCalls) blocks.push({ type: "tool_use", id, name, input });
  return {
    id: call.id,
    type: "message",
    role: "assistant",
    model: call.model,
    content: blocks,
    ...ending(call, generated),
    usage: usage(generated.promptTokens.length, generated.tokens.length),
  };
}

function ending({ params: { stop = [] } }: ModelCall, { stopReason, reply }: Generated) {
  if (stopReason === "length") return { stop_reason: "max_tokens", stop_sequence: null };
  if (reply.toolCalls.length > 0) return { stop_reason: "tool_use", stop_sequence: null };
  const sequence = stop.find((each) => reply.content.includes(each)) ?? null;
  return { stop_reason: sequence === null ? "end_turn" : "stop_sequence", stop_sequence: sequence };
}

const usage = (input: number, output: number) => ({
  input_tokens: input,
  output_tokens: output,
  cache_creation_input_tokens: 0,
  cache_read_input_tokens: 0,
});

async function streamMessage(exchange: HttpExchange, context: CallContext, call: ModelCall): Promise<void> {
  const { id, model, params } = call;
  const send = (event: { type: string } & Record<string, unknown>) =>
    exchange.sendEvent(JSON.stringify(event), event.type);
  const stream = replyStream(context.chat, { options: params, stops: params.stop });
  let index = -1;
  let open: "thinking" | "text" | undefined;

  const start = () => {
    if (!exchange.startEvents()) return;
    const empty = { content: [], stop_reason: null, stop_sequence: null, usage: usage(0, 0) };
    send({ type: "message_start", message: { id, type: "message", role: "assistant", model, ...empty } });
  };
  const startBlock = (block: object) => send({ type: "content_block_start", index: ++index, content_block: block });
  const sendDelta = (delta: object) => send({ type: "content_block_delta", index, delta });
  const endBlock = () => {
    if (open === "thinking") sendDelta({ type: "signature_delta", signature: "" });
    if (open !== undefined) send({ type: "content_block_stop", index });
    open = undefined;
  };
  const sendText = ({ reasoning, content }: { reasoning: string; content: string }) => {
    if (reasoning !== "") {
      if (open !== "thinking") {
        endBlock();
        startBlock(thinkingBlock(""));
      }
      open = "thinking";
      sendDelta({ type: "thinking_delta", thinking: reasoning });
    }
    if (content !== "") {
      if (open !== "text") {
        endBlock();
        startBlock({ type: "text", text: "" });
      }
      open = "text";
      sendDelta({ type: "text_delta", text: content });
    }
  };

  const [generated] = await callModel(context, call, (_, token) => {
    start();
    sendText(stream.push(token));
  });
  start();
  const { reply, promptTokens, tokens } = generated;
  sendText(stream.end({ ...reply, content: cutAtStop(reply.content, params.stop) }));
  endBlock();
  for (const { id, name, arguments: input } of reply.toolCalls) {
    startBlock({ type: "tool_use", id, name, input: {} });
    sendDelta({ type: "input_json_delta", partial_json: JSON.stringify(input) });
    send({ type: "content_block_stop", index });
  }
  send({ type: "message_delta", delta: ending(call, generated), usage: usage(promptTokens.length, tokens.length) });
  send({ type: "message_stop" });
  exchange.end();
}
