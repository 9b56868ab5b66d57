/**
 * A chat whose tokens are characters, so that a model behind an API of messages can be sampled like a model with tokens:
 * a prompt holds its messages, and they can be read back from it.
 */
import { assembleChat } from "../chat/assemble-chat.ts";
import { type CallFormat, thinkTags } from "../chat/formats/format.ts";
import { hermes } from "../chat/formats/hermes.ts";
import { textOf } from "../chat/images/content.ts";
import type { ChatMessage, TextMessage, ToolCall, ToolDefinition } from "../chat/messages.ts";
import type { Chat, RenderOptions } from "../chat/types.ts";

const roles = ["system", "user", "assistant", "tool"] as const;
/** Ids 0 to 5: the end of a turn, the header of the tools, and those of the four roles. */
const specials = ["<|end|>", "<|tools|>", ...roles.map((role) => `<|${role}|>`)];
const pieces = new RegExp(`${specials.map((special) => special.replaceAll("|", "\\|")).join("|")}|.`, "gsu");
const names = specials.map((special) => special.slice(2, -2)).join("|");
/** Stands between the two characters that begin a mark in somebody's text, so that it is not one. */
const joiner = "\u2060";
const escapeMarks = (text: string) =>
  text.replace(new RegExp(`<(${joiner}*)(?=\\|(?:${names})\\|>)`, "g"), `<$1${joiner}`);
const unescapeMarks = (text: string) =>
  text.replace(new RegExp(`<(${joiner}*)${joiner}(?=\\|(?:${names})\\|>)`, "g"), "<$1");

const encode = (text: string) =>
  Int32Array.from(text.match(pieces) ?? [], (piece) => {
    const special = specials.indexOf(piece);
    return special >= 0 ? special : specials.length + (piece.codePointAt(0) ?? 0);
  });

const toPiece = (id: number) =>
  id < specials.length ? (specials[id] ?? "") : String.fromCodePoint(Math.min(id - specials.length, 0x10ffff));

/** A reply as the model of the chat writes it. Unlike in other formats, calls keep the ids of the provider. */
export function writeReply({ content, reasoning, toolCalls = [] }: Omit<TextMessage, "role">): string {
  const thinking = reasoning ? `<think>\n${reasoning}\n</think>\n\n` : "";
  const calls = toolCalls.map(({ id, name, arguments: given, argumentsText }) => {
    const text = argumentsText ?? JSON.stringify(given);
    return `<tool_call>${JSON.stringify({ id, name, arguments: text })}</tool_call>`;
  });
  return escapeMarks(thinking + [...(content === "" ? [] : [content]), ...calls].join("\n"));
}

/** Keeps the ids of the provider. */
const calls: CallFormat = {
  ...hermes,
  read(text, tools) {
    const found = hermes.read(text, tools);
    return {
      ...found,
      calls: found.calls.map((call) => ({ ...call, ...(call.writtenId ? { id: call.writtenId } : {}) })),
    };
  },
};

function renderText(
  messages: readonly ChatMessage[],
  { tools = [], addGenerationPrompt = true }: RenderOptions,
): string {
  const offered = tools.length > 0 ? `<|tools|>${escapeMarks(JSON.stringify(tools))}<|end|>` : "";
  const written = messages.map((message) => {
    if (message.role === "assistant")
      return `<|assistant|>${writeReply({ ...message, content: textOf(message.content) })}<|end|>`;
    const of = message.role === "tool" ? `${JSON.stringify(message.toolCallId ?? "")}\n` : "";
    return `<|${message.role}|>${escapeMarks(of + textOf(message.content))}<|end|>`;
  });
  return offered + written.join("") + (addGenerationPrompt ? "<|assistant|>" : "");
}

export interface ProviderChat extends Chat {
  readonly eosId: number;
  /** The conversation of a prompt. */
  read(prompt: ArrayLike<number>): { messages: TextMessage[]; tools: ToolDefinition[] };
}

export function providerChat(): ProviderChat {
  const decode: Chat["decode"] = (tokens, { skipSpecial = false } = {}) => {
    const kept = Array.from(tokens).filter((id) => !skipSpecial || id >= specials.length);
    return unescapeMarks(kept.map(toPiece).join(""));
  };
  const chat = assembleChat({
    encode,
    decode,
    renderText,
    specials,
    format: { thinking: thinkTags, calls },
    ids: { bos: null, eos: 0, pad: null },
  });
  return {
    ...chat,
    eosId: 0,
    read(prompt) {
      const messages: TextMessage[] = [];
      let tools: ToolDefinition[] = [];
      for (const [, kind, raw = ""] of Array.from(prompt, toPiece).join("").matchAll(turns)) {
        const text = unescapeMarks(raw);
        if (kind === "tools") tools = JSON.parse(text) as ToolDefinition[];
        else messages.push(toMessage(chat, kind as TextMessage["role"], text));
      }
      return { messages, tools };
    },
  };
}

const turns = /<\|(tools|system|user|assistant|tool)\|>(.*?)<\|end\|>/gs;

/** Calls are read also if the tools are no longer offered. */
const anyTool: readonly ToolDefinition[] = [{ name: "any" }];

function toMessage(chat: Chat, role: TextMessage["role"], text: string): TextMessage {
  if (role === "tool") {
    const end = text.indexOf("\n");
    return { role, content: text.slice(end + 1), toolCallId: JSON.parse(text.slice(0, end)) as string };
  }
  if (role !== "assistant") return { role, content: text };
  const { content, reasoning, toolCalls } = chat.parse(text, { tools: anyTool });
  const message: TextMessage & { toolCalls?: readonly ToolCall[] } = { role, content };
  if (reasoning) message.reasoning = reasoning;
  if (toolCalls.length > 0) message.toolCalls = toolCalls;
  return message;
}
