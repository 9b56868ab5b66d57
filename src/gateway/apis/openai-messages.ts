/** Reads the messages of OpenAI's chat API. */
import { type ChatMessage, type ToolCall, toMessage } from "../../chat/messages.ts";
import { isObject } from "../../is-object.ts";
import type { Notices } from "../calls/notices.ts";
import { badParameter, readList, readString } from "../requests/read-parameters.ts";
import { openaiContent, textOf, toolContent } from "./content-parts.ts";
import { toolCall } from "./tools.ts";

/** @throws GatewayError naming the message that cannot be read */
export function fromOpenaiMessages(messages: unknown, notices: Notices): ChatMessage[] {
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
