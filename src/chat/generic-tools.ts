/**
 * Tools for chat templates that have no place for them, in the way of Hermes: the tools are described in the system
 * message, calls are text of the reply, and results are a user's message.
 */
import type { ChatMessage, ToolDefinition } from "./messages.ts";
import { toTemplateTool } from "./template-messages.ts";

/**
 * @param systemRole whether the template takes a system message; else the tools are described in the first user's message
 * @returns the messages without any tool calls and results that a template would have to write
 */
export function withGenericTools(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  systemRole: boolean,
): ChatMessage[] {
  const written = messages.map(writeCalls).reduce(joinUsers, []);
  const role = systemRole ? "system" : "user";
  const at = written.findIndex((message) => message.role === role);
  const section = describe(tools);
  if (at < 0 || (systemRole && at > 0)) return [{ role, content: section }, ...written];
  const { content } = written[at]!;
  // What the user asks stays last.
  return written.with(at, { role, content: systemRole ? `${content}\n\n${section}` : `${section}\n\n${content}` });
}

const describe = (tools: readonly ToolDefinition[]) => `You can call these functions:
<tools>
${tools.map((tool) => JSON.stringify(toTemplateTool(tool))).join("\n")}
</tools>
To call one, write its name and arguments as JSON between tags:
<tool_call>
{"name": "...", "arguments": {...}}
</tool_call>`;

function writeCalls({ role, content, reasoning, toolCalls = [] }: ChatMessage): ChatMessage {
  if (role === "tool") return { role: "user", content: `<tool_response>\n${content}\n</tool_response>` };
  const calls = toolCalls.map(
    ({ name, arguments: given }) => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`,
  );
  const text = [...(content === "" ? [] : [content]), ...calls].join("\n");
  return { role, content: text, ...(reasoning === undefined ? {} : { reasoning }) };
}

/** Several results of one turn are one message: some templates want user and assistant to take turns. */
function joinUsers(joined: ChatMessage[], message: ChatMessage): ChatMessage[] {
  const last = joined.at(-1);
  if (last?.role !== "user" || message.role !== "user") return [...joined, message];
  return [...joined.slice(0, -1), { role: "user", content: `${last.content}\n${message.content}` }];
}
