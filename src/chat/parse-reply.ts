/** Splits a reply's text into thinking, tool calls and content. Works without tokens. */
import type { ToolCallFormat } from "./formats/format.ts";
import type { ParsedReply, ReplyProblem } from "./messages.ts";

export interface ReplySyntax {
  /** Whether the model thinks between `<think>` and `</think>`. */
  thinks: boolean;
  /** Undefined if the model does not write calls. */
  calls: ToolCallFormat | undefined;
}

export interface ParseContext {
  /** The generation prompt wrote the `<think>`. */
  thinking: boolean;
  /** Tools were offered. */
  tools: boolean;
  callId: (index: number) => string;
}

export function parseReply(text: string, syntax: ReplySyntax, { thinking, tools, callId }: ParseContext): ParsedReply {
  const split = syntax.thinks ? splitThinking(text, thinking) : { content: text, problems: [] };
  const found = (tools && syntax.calls?.(split.content)) || { content: split.content, calls: [], problems: [] };
  const whole = split.reasoning === undefined && found.calls.length === 0;
  return {
    content: whole ? found.content : found.content.trim(),
    reasoning: split.reasoning,
    toolCalls: found.calls.map((call, index) => ({ id: callId(index), ...call })),
    problems: [...split.problems, ...found.problems],
  };
}

export const thinkStart = "<think>";
export const thinkEnd = "</think>";

/** Thinking ends at the first `</think>`, or at the end of the text if it was begun and not closed. */
function splitThinking(
  text: string,
  begun: boolean,
): { reasoning?: string; content: string; problems: ReplyProblem[] } {
  const start = text.trimStart().startsWith(thinkStart)
    ? text.indexOf(thinkStart) + thinkStart.length
    : begun
      ? 0
      : undefined;
  const end = text.indexOf(thinkEnd, start ?? 0);
  if (end >= 0) {
    const reasoning = text.slice(start ?? 0, end).trim();
    return { reasoning, content: text.slice(end + thinkEnd.length), problems: [] };
  }
  if (start === undefined) return { content: text, problems: [] };
  const reasoning = text.slice(start).trim();
  const message = `the thinking has no ${thinkEnd}, so there is no answer`;
  return { reasoning, content: "", problems: [{ kind: "unclosed_thinking", message, text: reasoning }] };
}
