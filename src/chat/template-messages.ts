/** Messages and tools in the shape that chat templates expect, which is that of the OpenAI API with parsed arguments. */
import type { ChatMessage, ToolDefinition } from "./messages.ts";

/** @param argumentsAsText for templates that expect a call's arguments as JSON text */
export function toTemplateMessage(message: ChatMessage, argumentsAsText = false): Record<string, unknown> {
  const { role, content, reasoning, toolCalls, toolCallId, name } = message;
  return {
    role,
    content,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(toolCalls === undefined || toolCalls.length === 0
      ? {}
      : {
          tool_calls: toolCalls.map((call) => ({
            id: call.id,
            type: "function",
            function: { name: call.name, arguments: argumentsAsText ? JSON.stringify(call.arguments) : call.arguments },
          })),
        }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
    ...(name === undefined ? {} : { name }),
  };
}

export function toTemplateTool({ name, description, parameters }: ToolDefinition): Record<string, unknown> {
  return {
    type: "function",
    function: {
      name,
      ...(description === undefined ? {} : { description }),
      parameters: parameters ?? { type: "object", properties: {} },
    },
  };
}
