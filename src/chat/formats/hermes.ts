/** The calls of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them. */
import { callFromJson, malformed, type WrittenCalls } from "./format.ts";

const open = "<tool_call>";
const close = "</tool_call>";

/**
 * @example
 * hermes('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>');
 * // content "Let me see.", one call
 */
export function hermes(text: string): WrittenCalls {
  const found: WrittenCalls = { content: "", calls: [], problems: [] };
  let rest = text;
  for (let start = rest.indexOf(open); start >= 0; start = rest.indexOf(open)) {
    found.content += rest.slice(0, start);
    const end = rest.indexOf(close, start);
    if (end < 0) {
      const cut = rest.slice(start);
      found.problems.push({ kind: "unclosed_tool_call", message: `a tool call has no ${close}`, text: cut });
      found.content += cut;
      rest = "";
      break;
    }
    const whole = rest.slice(start, end + close.length);
    const call = callFromJson(rest.slice(start + open.length, end), "arguments");
    if (typeof call === "string") {
      found.problems.push(malformed(call, whole));
      found.content += whole;
    } else found.calls.push(call);
    rest = rest.slice(end + close.length);
  }
  found.content += rest;
  return found;
}
