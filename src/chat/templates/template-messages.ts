/** Messages and tools as chat templates expect them: as in the OpenAI API, with parsed arguments. */
import type { ChatMessage, Content, ToolDefinition } from "../messages.ts";

/** What a template expects, other than most. */
export interface TemplateHabits {
  /** A call's arguments as JSON text. */
  argumentsAsText: boolean;
  /** Text as a list with one part. */
  textAsParts: boolean;
}

export function toTemplateMessage(message: ChatMessage, habits: TemplateHabits): Record<string, unknown> {
  const { role, content, reasoning, toolCalls, toolCallId, name } = message;
  const { argumentsAsText, textAsParts } = habits;
  const written: Record<string, unknown> = { role, content: toTemplateContent(content, textAsParts) };
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

/** An image is only its place: the template writes a placeholder. */
function toTemplateContent(content: Content, textAsParts: boolean): unknown {
  if (typeof content === "string") return textAsParts ? [{ type: "text", text: content }] : content;
  return content.map((part) => (part.type === "text" ? part : { type: "image" }));
}

export function toTemplateTool({ name, description, parameters }: ToolDefinition): Record<string, unknown> {
  const schema = parameters ?? { type: "object", properties: {} };
  const written = description === undefined ? { name, parameters: schema } : { name, description, parameters: schema };
  return { type: "function", function: written };
}
