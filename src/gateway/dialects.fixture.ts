/** One conversation in the dialect of each API, with the unmodified clients. They send back whatever the gateway replied. */
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import type { ToolDefinition } from "../chat/messages.ts";

/** A reply as its client sees it. */
export interface Shown {
  reasoning: string;
  content: string;
  calls: { id: string; name: string; arguments: unknown }[];
}

interface Talk {
  say(text: string): void;
  result(callId: string, text: string): void;
  ask(): Promise<Shown>;
}

interface Entry {
  baseURL: string;
  apiKey: string;
}

type Dialect = (entry: Entry, tools: readonly ToolDefinition[], streamed: boolean) => Talk;

/** The clients' types have no thinking. */
interface Thinking {
  reasoning_content?: string | undefined;
}

function chatCompletions(entry: Entry, offered: readonly ToolDefinition[], streamed: boolean): Talk {
  const client = new OpenAI(entry);
  const messages: OpenAI.ChatCompletionMessageParam[] = [];
  const tools = offered.map((tool) => ({ type: "function" as const, function: { ...tool } }));
  const body = { model: "m", messages, tools } as OpenAI.ChatCompletionCreateParamsNonStreaming;
  const whole = async () => (await client.chat.completions.create(body)).choices[0]!.message;
  /** Assembled from the pieces, as agents do it. */
  const assembled = async (): Promise<OpenAI.ChatCompletionMessage & Thinking> => {
    const calls: OpenAI.ChatCompletionMessageFunctionToolCall[] = [];
    let content = "";
    let reasoning = "";
    for await (const { choices } of await client.chat.completions.create({ ...body, stream: true })) {
      const delta = (choices[0]?.delta ?? {}) as OpenAI.ChatCompletionChunk.Choice.Delta & Thinking;
      content += delta.content ?? "";
      reasoning += delta.reasoning_content ?? "";
      for (const { index, id = "", function: piece } of delta.tool_calls ?? []) {
        calls[index] ??= { id, type: "function", function: { name: piece?.name ?? "", arguments: "" } };
        calls[index].function.arguments += piece?.arguments ?? "";
      }
    }
    const message = { role: "assistant" as const, content, refusal: null };
    return {
      ...message,
      ...(reasoning === "" ? {} : { reasoning_content: reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    };
  };
  return {
    say: (content) => messages.push({ role: "user", content }),
    result: (tool_call_id, content) => messages.push({ role: "tool", tool_call_id, content }),
    async ask() {
      const message: OpenAI.ChatCompletionMessage & Thinking = await (streamed ? assembled() : whole());
      messages.push(message);
      const calls = (message.tool_calls ?? []).filter((call) => call.type === "function");
      return {
        reasoning: message.reasoning_content ?? "",
        content: message.content ?? "",
        calls: calls.map(({ id, function: { name, arguments: given } }) => {
          return { id, name, arguments: JSON.parse(given) };
        }),
      };
    },
  };
}

function anthropicMessages(entry: Entry, offered: readonly ToolDefinition[], streamed: boolean): Talk {
  const client = new Anthropic({ baseURL: entry.baseURL.replace(/\/v1$/, ""), apiKey: entry.apiKey });
  const messages: Anthropic.MessageParam[] = [];
  const tools = offered.map(({ name, description, parameters }) => {
    const schema = (parameters ?? { type: "object" }) as Anthropic.Tool.InputSchema;
    return { name, input_schema: schema, ...(description === undefined ? {} : { description }) };
  });
  /** The results of parallel calls are blocks of one message. */
  const add = (block: Anthropic.TextBlockParam | Anthropic.ToolResultBlockParam) => {
    const last = messages.at(-1);
    if (last?.role === "user" && Array.isArray(last.content)) last.content.push(block);
    else messages.push({ role: "user", content: [block] });
  };
  return {
    say: (text) => add({ type: "text", text }),
    result: (tool_use_id, content) => add({ type: "tool_result", tool_use_id, content }),
    async ask() {
      const body = { model: "m", max_tokens: 100_000, messages, tools };
      const message = await (streamed
        ? client.messages.stream(body).finalMessage()
        : client.messages.create(body, { timeout: 60_000 }));
      messages.push({ role: "assistant", content: message.content });
      const shown: Shown = { reasoning: "", content: "", calls: [] };
      for (const block of message.content) {
        if (block.type === "thinking") shown.reasoning += block.thinking;
        if (block.type === "text") shown.content += block.text;
        if (block.type === "tool_use") shown.calls.push({ id: block.id, name: block.name, arguments: block.input });
      }
      return shown;
    },
  };
}

function responses(entry: Entry, offered: readonly ToolDefinition[], streamed: boolean): Talk {
  const client = new OpenAI(entry);
  const input: OpenAI.Responses.ResponseInputItem[] = [];
  const tools = offered.map(({ name, description, parameters }) => ({
    ...{ type: "function" as const, name, strict: false, parameters: { ...parameters } },
    ...(description === undefined ? {} : { description }),
  }));
  const body = { model: "m", input, tools };
  /** The items as they are done; their texts are those of the deltas. */
  const assembled = async () => {
    const items: OpenAI.Responses.ResponseOutputItem[] = [];
    const texts = new Map<number, string>();
    for await (const event of await client.responses.create({ ...body, stream: true })) {
      if ("delta" in event && typeof event.delta === "string" && "output_index" in event) {
        texts.set(event.output_index, (texts.get(event.output_index) ?? "") + event.delta);
      }
      if (event.type !== "response.output_item.done") continue;
      const { item } = event;
      const text = texts.get(event.output_index) ?? "";
      if (item.type === "function_call") item.arguments = text;
      else if (item.type === "message" || item.type === "reasoning") Object.assign(item.content?.[0] ?? {}, { text });
      items[event.output_index] = item;
    }
    return items;
  };
  return {
    say: (content) => input.push({ role: "user", content }),
    result: (call_id, output) => input.push({ type: "function_call_output", call_id, output }),
    async ask() {
      const output = streamed ? await assembled() : (await client.responses.create(body)).output;
      input.push(...(output as OpenAI.Responses.ResponseInputItem[]));
      const shown: Shown = { reasoning: "", content: "", calls: [] };
      for (const item of output) {
        if (item.type === "reasoning") shown.reasoning += item.content?.map(({ text }) => text).join("") ?? "";
        if (item.type === "message") {
          shown.content += item.content.map((part) => (part.type === "output_text" ? part.text : "")).join("");
        }
        if (item.type === "function_call") {
          shown.calls.push({ id: item.call_id, name: item.name, arguments: JSON.parse(item.arguments) });
        }
      }
      return shown;
    },
  };
}

export const dialects = {
  "chat completions": chatCompletions,
  messages: anthropicMessages,
  responses,
} satisfies Record<string, Dialect>;
