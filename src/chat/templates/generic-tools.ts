/**
 * Tools for chat templates that do not support them, in the format of Hermes: the system message describes the tools,
 * calls are text of the reply, and results are user messages.
 */
import { joinContents, textOf } from "../images/content.ts";
import type { ChatMessage, ToolDefinition } from "../messages.ts";
import { toTemplateTool } from "./template-messages.ts";

/**
 * @param systemRole whether the template supports system messages; else the first user message describes the tools
 * @returns the messages with tool calls and results as plain text
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
  const content = written[at]?.content;
  if (content === undefined || (systemRole && at > 0)) return [{ role, content: section }, ...written];
  // The user's question stays last.
  const joined = systemRole ? joinContents(content, `\n\n${section}`) : joinContents(`${section}\n\n`, content);
  return written.with(at, { role, content: joined });
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
  if (role === "tool") {
    return { role: "user", content: joinContents("<tool_response>\n", content, "\n</tool_response>") };
  }
  const calls = toolCalls.map(
    ({ name, arguments: given }) => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`,
  );
  if (calls.length === 0) return { role, content, reasoning };
  return { role, content: (content === "" ? calls : [textOf(content), ...calls]).join("\n"), reasoning };
}

/** Joins adjacent user messages, since some templates require user and assistant to alternate. */
function joinUsers(joined: ChatMessage[], message: ChatMessage): ChatMessage[] {
  const last = joined.at(-1);
  if (last?.role !== "user" || message.role !== "user") return [...joined, message];
  return [...joined.slice(0, -1), { role: "user", content: joinContents(last.content, "\n", message.content) }];
}
