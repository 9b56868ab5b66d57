/** Messages and tools as chat templates expect them: as in the OpenAI API, with parsed arguments. */
import type { ReplyFormat } from "../formats/format.ts";
import type { ChatMessage, Content, ToolDefinition } from "../messages.ts";

/** What a template expects, other than most. */
export interface TemplateHabits {
  /** A call's arguments as JSON text. */
  argumentsAsText: boolean;
  /** Text as a list with one part. */
  textAsParts: boolean;
  /** The key of the thinking; `"part"` if it is a part of the content. */
  reasoningKey: "reasoning_content" | "reasoning" | "thinking" | "part";
}

/** @param callId the id that the template expects, see `ReplyFormat` */
export function toTemplateMessages(
  messages: readonly ChatMessage[],
  habits: TemplateHabits,
  callId: ReplyFormat["callId"],
): Record<string, unknown>[] {
  const ids = new Map<string, string>();
  let index = 0;
  return messages.map((message) => {
    for (const { id, name, writtenId } of message.toolCalls ?? []) {
      ids.set(id, writtenId ?? callId?.(id, name, index) ?? id);
      index++;
    }
    return toTemplateMessage(message, habits, (id) => ids.get(id) ?? callId?.(id, "", 0) ?? id);
  });
}

function toTemplateMessage(
  message: ChatMessage,
  habits: TemplateHabits,
  idOf: (id: string) => string,
): Record<string, unknown> {
  const { role, content, reasoning, toolCalls, toolCallId, name } = message;
  const { argumentsAsText, textAsParts, reasoningKey } = habits;
  const written: Record<string, unknown> = { role, content: toTemplateContent(content, textAsParts) };
  // Templates test which keys exist.
  if (reasoning !== undefined && reasoningKey !== "part") written[reasoningKey] = reasoning;
  if (reasoning && reasoningKey === "part") {
    const said = toTemplateContent(content, true);
    written.content = [{ type: "thinking", thinking: reasoning }, ...(content === "" ? [] : (said as unknown[]))];
  }
  if (toolCalls?.length) {
    written.tool_calls = toolCalls.map((call) => ({
      id: idOf(call.id),
      type: "function",
      function: { name: call.name, arguments: argumentsAsText ? JSON.stringify(call.arguments) : call.arguments },
    }));
  }
  if (toolCallId !== undefined) written.tool_call_id = idOf(toolCallId);
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
