/** Messages and tools as chat templates expect them: as in the OpenAI API, with parsed arguments. */
import type { ChatMessage, ToolDefinition } from "../messages.ts";

/** @param argumentsAsText for templates that expect a call's arguments as JSON text */
export function toTemplateMessage(message: ChatMessage, argumentsAsText = false): Record<string, unknown> {
  const { role, content, reasoning, toolCalls, toolCallId, name } = message;
  const written: Record<string, unknown> = { role, content };
  // Templates test which keys exist.
  if (reasoning !== undefined) written.reasoning_content = reasoning;
  if (toolCalls?.length) {
    written.tool_calls = toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: argumentsAsText ? JSON.stringify(call.arguments) : call.arguments },
    }));
  }
  if (toolCallId !== undefined) written.tool_call_id = toolCallId;
  if (name !== undefined) written.name = name;
  return written;
}

export function toTemplateTool({ name, description, parameters }: ToolDefinition): Record<string, unknown> {
  const schema = parameters ?? { type: "object", properties: {} };
  const written = description === undefined ? { name, parameters: schema } : { name, description, parameters: schema };
  return { type: "function", function: written };
}
