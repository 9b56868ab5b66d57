/** `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API. */
import { randomUUID } from "node:crypto";
import { cutAtStop } from "../../chat/cut-at-stop.ts";
import type { ChatMessage, ToolCall, ToolDefinition } from "../../chat/messages.ts";
import type { Generated, GenerateParams } from "../../rollout/generate.ts";
import type { HttpExchange } from "../http-exchange.ts";
import { type CallContext, callModel, type ModelCall } from "../model-call.ts";
import type { Notices } from "../notices.ts";
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
  readStrings,
} from "../read-parameters.ts";
import { replyStream } from "../stream-reply.ts";
import { demand } from "./guarantees.ts";
import { textOf, toolDefinition } from "./openai-messages.ts";
import { readTemperature } from "./sampling-parameters.ts";

const noBearing = "it has no bearing on what is sampled";

const messagesRules: Readonly<Record<string, Rule>> = {
  model: "used",
  messages: "used",
  system: "used",
  max_tokens: "used",
  temperature: "used",
  top_p: "used",
  top_k: "used",
  stop_sequences: "used",
  stream: "used",
  tools: "used",
  tool_choice: "used",
  thinking: "used",
  metadata: "used",
  service_tier: { ignored: noBearing },
  inference_geo: { ignored: noBearing },
  cache_control: { ignored: noBearing },
  output_config: { ignored: "replies are sampled freely" },
  context_management: { ignored: "histories are taken as they come" },
  betas: { ignored: noBearing },
  container: { refused: "there are no containers" },
  mcp_servers: { refused: "connect the agent to its servers; their tools can be offered like any others" },
};

export async function anthropicMessages(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, messagesRules, context.notices);
  const call = readCall(body, context);
  if (readBoolean(body, "stream")) return streamMessage(exchange, context, call);
  const [generated] = await callModel(context, call);
  exchange.sendJson(200, toMessage(call, generated!));
}

export async function anthropicCountTokens(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, messagesRules, context.notices);
  const { prompt, params } = readCall({ max_tokens: 1, ...body }, context);
  const { signal } = context;
  const tokens = await context.chat.renderLater(prompt.messages, { ...params, signal });
  exchange.sendJson(200, { input_tokens: tokens.length });
}

function readCall(body: Body, context: CallContext): ModelCall & { prompt: { messages: readonly ChatMessage[] } } {
  const { notices } = context;
  const maxTokens = readNumber(body, "max_tokens", { min: 1, integer: true });
  if (maxTokens === undefined) throw badParameter("max_tokens", "max_tokens: field required");
  const temperature = readTemperature(body, 1);
  const topP = readNumber(body, "top_p", { min: 0, max: 1 });
  const topK = readNumber(body, "top_k", { min: 0, integer: true });
  const stop = readStrings(body, "stop_sequences");
  const tools = readTools(body, context);
  const params: GenerateParams = {
    maxTokens,
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { topP }),
    ...(topK === undefined ? {} : { topK: topK === 0 ? -1 : topK }),
    ...(stop === undefined ? {} : { stop }),
    ...(tools.length === 0 ? {} : { tools }),
    ...readThinking(readObject(body, "thinking"), notices),
  };
  return {
    id: `msg_${randomUUID().replaceAll("-", "")}`,
    model: readName(body, "model") ?? "",
    prompt: { messages: readMessages(body, notices) },
    n: 1,
    params,
    topLogprobs: 0,
    metadata: readObject(body, "metadata") ?? {},
  };
}

function readThinking(thinking: Body | undefined, notices: Notices): GenerateParams {
  if (thinking?.type === "disabled") return { thinking: false };
  if (thinking?.type !== "enabled") return {};
  notices.add("ignored_parameter/thinking.budget_tokens", "thinking.budget_tokens is not enforced; max_tokens is");
  return { thinking: true };
}

function readTools(body: Body, context: CallContext): ToolDefinition[] {
  const choice = readObject(body, "tool_choice") ?? { type: "auto" };
  if (choice.type === "none") return [];
  if (choice.type === "any") demand(context, "tool_choice", "that a tool is called");
  else if (choice.type === "tool") demand(context, "tool_choice", `that the tool ${choice.name} is called`);
  else if (choice.type !== "auto")
    throw badParameter("tool_choice", "tool_choice must be of type auto, any, tool or none");
  return (readList(body, "tools") ?? []).map((tool, index) => {
    const at = `tools.${index}`;
    if (!isObject(tool) || (tool.type !== undefined && tool.type !== null && tool.type !== "custom")) {
      throw badParameter(at, `${at} must be a tool of the client's own; a model that is trained has no others`);
    }
    return toolDefinition({ ...tool, parameters: tool.input_schema }, at, context.notices);
  });
}

function readMessages(body: Body, notices: Notices): ChatMessage[] {
  const list = readList(body, "messages");
  if (list === undefined || list.length === 0) throw badParameter("messages", "messages: at least one is required");
  const system = textOf(body.system, "system");
  const messages = list.flatMap((message, index) => fromMessage(message, `messages.${index}`, notices));
  if (messages.at(-1)?.role === "assistant") {
    throw badParameter("messages", "the last message is the assistant's; the model always begins a turn of its own");
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
  const blocks: unknown[] =
    typeof content === "string" ? [{ type: "text", text: content }] : Array.isArray(content) ? content : [];
  return role === "user" ? fromUser(blocks, at, notices) : [fromAssistant(blocks, at)];
}

/** The results of tools are messages of their own, before what the user says beside them. */
function fromUser(blocks: readonly unknown[], at: string, notices: Notices): ChatMessage[] {
  const results: ChatMessage[] = [];
  const texts: string[] = [];
  for (const [index, block] of blocks.entries()) {
    const where = `${at}.content.${index}`;
    if (!isObject(block)) throw badParameter(where, `${where} must be an object`);
    if (block.type === "text" && typeof block.text === "string") texts.push(block.text);
    else if (block.type === "tool_result" && typeof block.tool_use_id === "string") {
      if (block.is_error === true) {
        notices.add(
          "ignored_parameter/tool_result.is_error",
          "is_error is ignored: chat templates have no place for it",
        );
      }
      results.push({ role: "tool", content: textOf(block.content, `${where}.content`), toolCallId: block.tool_use_id });
    } else throw badParameter(where, `${where} is of type ${block.type}; only text and tool results are supported`);
  }
  return texts.length > 0 ? [...results, { role: "user", content: texts.join("\n") }] : results;
}

function fromAssistant(blocks: readonly unknown[], at: string): ChatMessage {
  const texts: string[] = [];
  const thoughts: string[] = [];
  const toolCalls: ToolCall[] = [];
  for (const [index, block] of blocks.entries()) {
    const where = `${at}.content.${index}`;
    if (!isObject(block)) throw badParameter(where, `${where} must be an object`);
    if (block.type === "text" && typeof block.text === "string") texts.push(block.text);
    else if (block.type === "thinking" && typeof block.thinking === "string") thoughts.push(block.thinking);
    else if (block.type === "tool_use" && typeof block.id === "string" && typeof block.name === "string") {
      toolCalls.push({ id: block.id, name: block.name, arguments: isObject(block.input) ? block.input : {} });
    } else throw badParameter(where, `${where} is of type ${block.type}, which is not supported`);
  }
  return {
    role: "assistant",
    content: texts.join(""),
    ...(thoughts.length > 0 ? { reasoning: thoughts.join("") } : {}),
    ...(toolCalls.length > 0 ? { toolCalls } : {}),
  };
}

function toMessage(call: ModelCall, generated: Generated) {
  const { reply } = generated;
  const text = cutAtStop(reply.content, call.params.stop);
  return {
    ...{ id: call.id, type: "message", role: "assistant", model: call.model },
    content: [
      // The signature is a service's proof that it wrote the thinking; tokens are the proof here.
      ...(reply.reasoning ? [{ type: "thinking", thinking: reply.reasoning, signature: "" }] : []),
      ...(text !== "" ? [{ type: "text", text }] : []),
      ...reply.toolCalls.map(({ id, name, arguments: input }) => ({ type: "tool_use", id, name, input })),
    ],
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
  ...{ input_tokens: input, output_tokens: output },
  ...{ cache_creation_input_tokens: 0, cache_read_input_tokens: 0 },
});

async function streamMessage(exchange: HttpExchange, context: CallContext, call: ModelCall): Promise<void> {
  const send = (event: { type: string } & Record<string, unknown>) =>
    exchange.sendEvent(JSON.stringify(event), event.type);
  const stream = replyStream(context.chat, { options: call.params, stops: call.params.stop });
  let started = false;
  let index = -1;
  let open: "thinking" | "text" | undefined;

  const start = () => {
    if (started) return;
    started = true;
    exchange.startEvents();
    const empty = { content: [], stop_reason: null, stop_sequence: null, usage: usage(0, 0) };
    send({
      type: "message_start",
      message: { id: call.id, type: "message", role: "assistant", model: call.model, ...empty },
    });
  };
  const begin = (block: { type: string } & Record<string, unknown>) =>
    send({ type: "content_block_start", index: ++index, content_block: block });
  const delta = (type: string, fields: object) =>
    send({ type: "content_block_delta", index, delta: { type, ...fields } });
  const stop = () => {
    if (open === "thinking") delta("signature_delta", { signature: "" });
    if (open !== undefined) send({ type: "content_block_stop", index });
    open = undefined;
  };
  const tell = ({ reasoning, content }: { reasoning: string; content: string }) => {
    if (reasoning !== "") {
      if (open !== "thinking") begin({ type: "thinking", thinking: "", signature: "" });
      open = "thinking";
      delta("thinking_delta", { thinking: reasoning });
    }
    if (content !== "") {
      if (open !== "text") {
        stop();
        begin({ type: "text", text: "" });
      }
      open = "text";
      delta("text_delta", { text: content });
    }
  };

  const [generated] = await callModel(context, call, (_, token) => {
    start();
    tell(stream.push(token));
  });
  start();
  const { reply, promptTokens, tokens } = generated!;
  tell(stream.end({ ...reply, content: cutAtStop(reply.content, call.params.stop) }));
  stop();
  for (const { id, name, arguments: input } of reply.toolCalls) {
    begin({ type: "tool_use", id, name, input: {} });
    delta("input_json_delta", { partial_json: JSON.stringify(input) });
    send({ type: "content_block_stop", index });
  }
  send({ type: "message_delta", delta: ending(call, generated!), usage: usage(promptTokens.length, tokens.length) });
  send({ type: "message_stop" });
  exchange.end();
}
