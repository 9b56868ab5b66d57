/** The calls of Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or `[TOOL_CALLS]name[ARGS]{...}` each. */
import { callFromValue, malformed, type WrittenCall, type WrittenCalls } from "./format.ts";
import { readJsonValues } from "./json-values.ts";

const mark = "[TOOL_CALLS]";

export function mistral(text: string): WrittenCalls {
  const [content, ...parts] = text.split(mark);
  const found: WrittenCalls = { content: content ?? "", calls: [], problems: [] };
  for (const part of parts) {
    const calls = readPart(part);
    const wrong = calls.find((call) => typeof call === "string");
    if (wrong === undefined) found.calls.push(...calls.filter((call) => typeof call !== "string"));
    else {
      found.problems.push(malformed(wrong, mark + part));
      found.content += mark + part;
    }
  }
  return found;
}

function readPart(part: string): (WrittenCall | string)[] {
  const named = /^\s*([\w.-]+)\s*(?:\[CALL_ID\][^[]*)?\[ARGS\]/.exec(part);
  const read = readJsonValues(named ? part.slice(named[0].length) : part, ",");
  if (read.problem !== undefined) return [read.problem];
  if (read.values.length === 0) return ["nothing follows"];
  if (named) {
    return read.values.map(({ value, text }) =>
      callFromValue({ name: named[1], arguments: value }, "arguments", `"arguments":${text}`),
    );
  }
  return read.values.flatMap(({ value }) => [value].flat().map((call) => callFromValue(call, "arguments")));
}
