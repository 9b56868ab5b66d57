/** `POST /v1/responses` */
import { randomUUID } from "node:crypto";
import type { ChatMessage, ToolDefinition } from "../../chat/messages.ts";
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
  readStrings,
} from "../read-parameters.ts";
import { replyStream } from "../stream-reply.ts";
import { checkedWish, countJson, jsonFault } from "./check-json.ts";
import { demand, type JsonWish, withJsonInstruction } from "./guarantees.ts";
import { argumentsText, toolDefinition } from "./openai-messages.ts";
import { fromResponseItems } from "./response-items.ts";
import { readSampling } from "./sampling-parameters.ts";
import { chatLogprobs } from "./token-logprobs.ts";

const noBearing = "it has no bearing on what is sampled";
const noMemory = "the gateway keeps no conversations for its clients; send the whole history as input";

const responsesRules: Readonly<Record<string, Rule>> = {
  model: "used",
  input: "used",
  instructions: "used",
  stream: "used",
  tools: "used",
  tool_choice: "used",
  parallel_tool_calls: "used",
  max_output_tokens: "used",
  temperature: "used",
  top_p: "used",
  top_logprobs: "used",
  include: "used",
  text: "used",
  reasoning: "used",
  metadata: "used",
  store: { ignored: "calls are stored as the gateway is set up" },
  user: { ignored: noBearing },
  service_tier: { ignored: noBearing },
  safety_identifier: { ignored: noBearing },
  prompt_cache_key: { ignored: noBearing },
  prompt_cache_retention: { ignored: noBearing },
  stream_options: { ignored: "events are never obfuscated" },
  max_tool_calls: { ignored: "tools are the client's own" },
  truncation: { refused: "a prompt that is too long is an error, never cut", unless: ["disabled"] },
  background: { refused: "replies are sampled while the client waits", unless: [false] },
  previous_response_id: { refused: noMemory },
  conversation: { refused: noMemory },
  prompt: { refused: "there are no stored prompts" },
};

interface ResponseRequest extends ModelCall {
  logprobs: boolean;
  json: JsonWish | undefined;
  /** What the response says of its request. */
  echoed: Record<string, unknown>;
}

export async function openaiResponses(exchange: HttpExchange, body: Body, context: CallContext): Promise<void> {
  checkParameters(body, responsesRules, context.notices);
  const request = readRequest(body, context);
  if (readBoolean(body, "stream")) return streamResponse(exchange, context, request);
  const [generated] = await callModel(context, request);
  if (request.json) countJson(generated!.reply.content, request.json, context.notices);
  exchange.sendJson(200, completed(request, generated!, outputOf(context, request, generated!)));
}

function readRequest(body: Body, context: CallContext): ResponseRequest {
  const { notices } = context;
  const instructions = readString(body, "instructions");
  const tools = readTools(body, context);
  if (tools.length > 0 && readBoolean(body, "parallel_tool_calls") === false) {
    notices.add("ignored_parameter/parallel_tool_calls", "parallel_tool_calls=false is not enforced");
  }
  const format = readObject(readObject(body, "text") ?? {}, "format");
  const json = readFormat(format, context);
  const history = fromResponseItems(body.input);
  const messages: readonly ChatMessage[] =
    instructions === undefined ? history : [{ role: "system", content: instructions }, ...history];
  const topLogprobs = readNumber(body, "top_logprobs", { min: 0, max: 20, integer: true }) ?? 0;
  const include = readStrings(body, "include") ?? [];
  const effort = readString(readObject(body, "reasoning") ?? {}, "effort");
  const params: GenerateParams = {
    ...readSampling(body, readNumber(body, "max_output_tokens", { min: 1, integer: true })),
    ...(tools.length > 0 ? { tools } : {}),
    ...(effort === undefined ? {} : effort === "none" ? { thinking: false } : { reasoningEffort: effort }),
  };
  return {
    id: `resp_${randomUUID().replaceAll("-", "")}`,
    model: readName(body, "model") ?? "",
    prompt: { messages: withJsonInstruction(messages, json) },
    n: 1,
    ...{ params, topLogprobs, json },
    ...(json ? { wrongWith: ({ content }) => jsonFault(content, json) } : {}),
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

function readTools(body: Body, context: CallContext): ToolDefinition[] {
  const choice = body.tool_choice ?? "auto";
  if (choice === "none") return [];
  if (choice === "required") demand(context, "tool_choice", "that a tool is called");
  else if (isObject(choice)) demand(context, "tool_choice", `that ${choice.name ?? choice.type} is called`);
  else if (choice !== "auto")
    throw badParameter("tool_choice", "tool_choice must be none, auto, required or an object");
  return (readList(body, "tools") ?? []).map((tool, index) => {
    const at = `tools[${index}]`;
    if (isObject(tool) && tool.type === "function") return toolDefinition(tool, at, context.notices);
    throw badParameter(at, `${at} must be of type function; a model that is trained has no other tools`);
  });
}

function readFormat(format: Body | undefined, context: CallContext): JsonWish | undefined {
  if (format === undefined || format.type === "text") return undefined;
  if (format.type === "json_object") return { schema: undefined };
  if (format.type !== "json_schema" || !isObject(format.schema)) {
    throw badParameter("text.format", "text.format must be text, json_object, or json_schema with a schema");
  }
  if (format.strict === true) demand(context, "text.format.strict", "a reply that keeps to a schema");
  return checkedWish(format.schema, "text.format.schema");
}

type Item = { id: string; type: string } & Record<string, unknown>;

const messageItem = (call: ModelCall, status: string, content: unknown[]): Item => ({
  ...{ id: call.id.replace("resp", "msg"), type: "message", status, role: "assistant", content },
});

const textPart = (text: string, logprobs: unknown[]) => ({ type: "output_text", text, annotations: [], logprobs });

const reasoningItem = (call: ModelCall, text: string): Item => ({
  ...{ id: call.id.replace("resp", "rs"), type: "reasoning", summary: [] },
  content: [{ type: "reasoning_text", text }],
});

function outputOf({ chat }: CallContext, request: ResponseRequest, generated: Generated): Item[] {
  const { reasoning, content, toolCalls } = generated.reply;
  const status = generated.stopReason === "length" ? "incomplete" : "completed";
  const logprobs = request.logprobs ? chatLogprobs(chat, generated) : [];
  return [
    ...(reasoning ? [reasoningItem(request, reasoning)] : []),
    ...(content !== "" || toolCalls.length === 0 ? [messageItem(request, status, [textPart(content, logprobs)])] : []),
    ...toolCalls.map((call) => ({
      ...{ id: `fc_${call.id}`, type: "function_call", status: "completed", call_id: call.id, name: call.name },
      arguments: argumentsText(call),
    })),
  ];
}

const begun = ({ id, model, echoed }: ResponseRequest, status: string) => ({
  ...{ id, object: "response", created_at: Math.floor(Date.now() / 1000), status, background: false, error: null },
  ...{ incomplete_details: null as unknown, model, output: [] as Item[], previous_response_id: null, store: false },
  ...{ truncation: "disabled", usage: null as unknown, user: null, ...echoed },
});

function completed(request: ResponseRequest, generated: Generated, output: Item[]) {
  const { stopReason, promptTokens, tokens } = generated;
  const cut = stopReason === "length";
  return {
    ...begun(request, cut ? "incomplete" : "completed"),
    incomplete_details: cut ? { reason: "max_output_tokens" } : null,
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
  /** The message that is being written: its place in the output, and whether it has been announced. */
  const message = { id: messageItem(request, "in_progress", []).id, at: 0, open: false };
  const thought = { id: reasoningItem(request, "").id, open: false };
  let started = false;

  const start = () => {
    if (started) return;
    started = true;
    exchange.startEvents();
    send("response.created", { response: begun(request, "in_progress") });
    send("response.in_progress", { response: begun(request, "in_progress") });
  };
  const tell = ({ reasoning, content }: { reasoning: string; content: string }) => {
    if (reasoning !== "") {
      if (!thought.open) {
        send("response.output_item.added", { output_index: 0, item: { ...reasoningItem(request, ""), content: [] } });
        const at = { item_id: thought.id, output_index: 0, content_index: 0 };
        send("response.content_part.added", { ...at, part: { type: "reasoning_text", text: "" } });
        thought.open = true;
        message.at = 1;
      }
      send("response.reasoning_text.delta", {
        item_id: thought.id,
        output_index: 0,
        content_index: 0,
        delta: reasoning,
      });
    }
    if (content !== "") {
      openMessage();
      const at = { item_id: message.id, output_index: message.at, content_index: 0 };
      send("response.output_text.delta", { ...at, delta: content, logprobs: [] });
    }
  };
  const openMessage = () => {
    if (message.open) return;
    message.open = true;
    send("response.output_item.added", { output_index: message.at, item: messageItem(request, "in_progress", []) });
    const at = { item_id: message.id, output_index: message.at, content_index: 0 };
    send("response.content_part.added", { ...at, part: textPart("", []) });
  };

  const [generated] = await callModel(context, request, (_, token) => {
    start();
    tell(stream.push(token));
  });
  start();
  tell(stream.end(generated!.reply));
  if (request.json) countJson(generated!.reply.content, request.json, context.notices);
  const output = outputOf(context, request, generated!);
  for (const [index, item] of output.entries()) {
    const at = { item_id: item.id, output_index: index, content_index: 0 };
    if (item.type === "reasoning") {
      send("response.reasoning_text.done", { ...at, text: generated!.reply.reasoning });
    } else if (item.type === "message") {
      openMessage();
      const [part] = item.content as ReturnType<typeof textPart>[];
      send("response.output_text.done", { ...at, text: part!.text, logprobs: part!.logprobs });
      send("response.content_part.done", { ...at, part });
    } else {
      send("response.output_item.added", {
        output_index: index,
        item: { ...item, status: "in_progress", arguments: "" },
      });
      const call = { item_id: item.id, output_index: index };
      send("response.function_call_arguments.delta", { ...call, delta: item.arguments });
      send("response.function_call_arguments.done", { ...call, name: item.name, arguments: item.arguments });
    }
    send("response.output_item.done", { output_index: index, item });
  }
  const response = completed(request, generated!, output);
  send(`response.${response.status}`, { response });
  exchange.end();
}
