/** Messages, tools and tool calls between OpenAI's chat API and Hone's own form. */
import type { ChatMessage, ParsedReply, ToolCall, ToolDefinition } from "../../chat/messages.ts";
import type { Notices } from "../notices.ts";
import { type Body, badParameter, isObject, readString } from "../read-parameters.ts";

/** @throws GatewayError naming the message that cannot be read */
export function fromOpenaiMessages(messages: unknown, notices: Notices): ChatMessage[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw badParameter("messages", "messages must be a list of at least one message");
  }
  return messages.map((message: unknown, index) => fromMessage(message, `messages[${index}]`, notices));
}

function fromMessage(message: unknown, at: string, notices: Notices): ChatMessage {
  if (!isObject(message)) throw badParameter(at, `${at} must be an object`);
  const content = textOf(message.content, `${at}.content`);
  switch (message.role) {
    case "system":
    case "developer":
    case "user":
      if (message.name !== undefined) {
        notices.add(
          "ignored_parameter/messages.name",
          "names of users are ignored: chat templates have no place for them",
        );
      }
      return { role: message.role === "user" ? "user" : "system", content };
    case "assistant": {
      if (message.function_call) throw badParameter(`${at}.function_call`, "function_call is obsolete; use tool_calls");
      if (message.audio) throw badParameter(`${at}.audio`, "audio is not supported");
      const reasoning = readString(message, "reasoning_content") ?? readString(message, "reasoning");
      const calls = toolCalls(message.tool_calls, `${at}.tool_calls`);
      return {
        role: "assistant",
        content,
        ...(reasoning ? { reasoning } : {}),
        ...(calls.length > 0 ? { toolCalls: calls } : {}),
      };
    }
    case "tool": {
      const id = readString(message, "tool_call_id");
      if (id === undefined) throw badParameter(`${at}.tool_call_id`, `${at} names no tool_call_id`);
      const name = readString(message, "name");
      return { role: "tool", content, toolCallId: id, ...(name === undefined ? {} : { name }) };
    }
    default:
      throw badParameter(
        `${at}.role`,
        `${at}.role is ${JSON.stringify(message.role)}; it must be system, developer, user, assistant or tool`,
      );
  }
}

/** Text, or a list of parts that are all text. */
export function textOf(content: unknown, at: string): string {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) throw badParameter(at, `${at} must be a string or a list of parts`);
  return content
    .map((part: unknown, index) => {
      if (isObject(part) && typeof part.text === "string") return part.text;
      const type = isObject(part) ? String(part.type) : typeof part;
      throw badParameter(`${at}[${index}]`, `${at}[${index}] is of type ${type}; only text is supported`);
    })
    .join("");
}

function toolCalls(value: unknown, at: string): ToolCall[] {
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value)) throw badParameter(at, `${at} must be a list`);
  return value.map((call: unknown, index): ToolCall => {
    const given = isObject(call) && isObject(call.function) ? call.function : undefined;
    const { id } = isObject(call) ? call : {};
    if (given === undefined || typeof id !== "string" || typeof given.name !== "string") {
      throw badParameter(`${at}[${index}]`, `${at}[${index}] must be a function call with id, name and arguments`);
    }
    return toolCall(id, given.name, given.arguments, `${at}[${index}].function.arguments`);
  });
}

/** @param given the arguments as JSON text */
export function toolCall(id: string, name: string, given: unknown, at: string): ToolCall {
  const text = typeof given === "string" && given.trim() !== "" ? given : "{}";
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  if (!isObject(value)) throw badParameter(at, `${at} must be a JSON object; it is ${text.slice(0, 200)}`);
  return { id, name, arguments: value, argumentsText: text };
}

/** @param tools `[{ type: "function", function: { name, description, parameters } }]` */
export function fromOpenaiTools(tools: unknown[] | undefined, notices: Notices): ToolDefinition[] {
  return (tools ?? []).map((tool, index) => {
    const at = `tools[${index}]`;
    if (!isObject(tool) || tool.type !== "function" || !isObject(tool.function)) {
      throw badParameter(at, `${at} must be of type function; a model that is trained has no other tools`);
    }
    return toolDefinition(tool.function, at, notices);
  });
}

export function toolDefinition(given: Body, at: string, notices: Notices): ToolDefinition {
  const { name, description, parameters, strict } = given;
  if (typeof name !== "string" || name === "") throw badParameter(`${at}.name`, `${at} has no name`);
  if (strict === true) {
    notices.add("ignored_parameter/tools.strict", "strict tools are ignored: arguments are what the model samples");
  }
  return {
    name,
    ...(typeof description === "string" ? { description } : {}),
    ...(isObject(parameters) ? { parameters } : {}),
  };
}

/** The arguments as the model wrote them. */
export const argumentsText = (call: ToolCall) => call.argumentsText ?? JSON.stringify(call.arguments);

export const toOpenaiToolCalls = (calls: ParsedReply["toolCalls"]) =>
  calls.map((call) => ({
    id: call.id,
    type: "function" as const,
    function: { name: call.name, arguments: argumentsText(call) },
  }));
