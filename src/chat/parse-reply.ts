/** Splits a reply's text into thinking, tool calls and content. Works without tokens. */
import type { ReplyFormat, SplitReply, ThinkingMarks, WrittenCalls } from "./formats/format.ts";
import type { ParsedReply, ToolDefinition } from "./messages.ts";

export interface ParseContext {
  /** The generation prompt began the thinking. */
  thinking: boolean;
  /** The offered tools. Without tools, calls are text. */
  tools: readonly ToolDefinition[];
  callId: (index: number) => string;
}

export function parseReply(text: string, format: ReplyFormat, { thinking, tools, callId }: ParseContext): ParsedReply {
  const split = splitReply(text, format, thinking);
  const { calls, content, problems }: WrittenCalls =
    tools.length > 0 && format.calls
      ? format.calls.read(split.content, tools)
      : { content: split.content, calls: [], problems: [] };
  const whole = split.reasoning === undefined && calls.length === 0;
  return {
    content: whole ? content : content.trim(),
    reasoning: split.reasoning,
    toolCalls: calls.map((call, index) => ({ id: callId(index), ...call })),
    problems: [...split.problems, ...problems],
  };
}

function splitReply(text: string, { split, thinking }: ReplyFormat, begun: boolean): SplitReply {
  if (split) return split(text);
  return thinking ? splitThinking(text, thinking, begun) : { content: text, problems: [] };
}

/** Thinking ends at the first closing mark, or at the end of the text if it was begun and not closed. */
function splitThinking(text: string, { open, close }: ThinkingMarks, begun: boolean): SplitReply {
  const start = text.trimStart().startsWith(open) ? text.indexOf(open) + open.length : begun ? 0 : undefined;
  const end = text.indexOf(close, start ?? 0);
  if (end >= 0) {
    const reasoning = text.slice(start ?? 0, end).trim();
    return { reasoning, content: text.slice(end + close.length), problems: [] };
  }
  if (start === undefined) return { content: text, problems: [] };
  const reasoning = text.slice(start).trim();
  const message = `the thinking has no ${close}, so there is no answer`;
  return { reasoning, content: "", problems: [{ kind: "unclosed_thinking", message, text: reasoning }] };
}
