/** What a conversation is made of, whoever speaks it: messages, tool calls, tool definitions. */

export interface ToolCall {
  /** Names the call, so that its result can refer to it; unique within a rollout where Hone gave it. */
  id: string;
  name: string;
  /** A JSON object. */
  arguments: Readonly<Record<string, unknown>>;
  /** The arguments as JSON, as the model wrote them where its format lets them be cut out. */
  argumentsText?: string;
}

export interface ChatMessage {
  role: "system" | "user" | "assistant" | "tool";
  /** Text; empty where an assistant's message is tool calls alone. */
  content: string;
  /** What an assistant thought before it answered, without the marks around it. */
  reasoning?: string;
  /** Of an assistant. */
  toolCalls?: readonly ToolCall[];
  /** Of a tool's message: the call that it answers. */
  toolCallId?: string;
  /** Of a tool's message: the tool. Some templates write it. */
  name?: string;
}

export interface ToolDefinition {
  name: string;
  description?: string;
  /** JSON Schema of the arguments; absent: none are taken. */
  parameters?: Readonly<Record<string, unknown>>;
}

/** Why a part of a reply could not be read. The text that it is about stays in the reply's content. */
export interface ReplyProblem {
  kind: "malformed_tool_call" | "unclosed_tool_call" | "unclosed_thinking";
  message: string;
  text: string;
}

/** A reply taken apart. A malformed call is no error: it is a problem told, for an environment to answer to. */
export interface ParsedReply {
  content: string;
  reasoning?: string;
  toolCalls: ToolCall[];
  problems: ReplyProblem[];
}

/** The reply as a message for the history. */
export function toMessage({ content, reasoning, toolCalls }: MessageParts): ChatMessage {
  const message: ChatMessage = { role: "assistant", content };
  if (reasoning) message.reasoning = reasoning;
  if (toolCalls.length > 0) message.toolCalls = toolCalls;
  return message;
}

interface MessageParts {
  content: string;
  reasoning?: string | undefined;
  toolCalls: readonly ToolCall[];
}
