/**
 * Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or, since version 11 of its tokenizer,
 * `[TOOL_CALLS]name[ARGS]{...}` each. Reasoning models think between `[THINK]` and `[/THINK]`.
 */
import {
  allOrProblem,
  type CallFormat,
  callFromValue,
  malformed,
  type ThinkingMarks,
  type WrittenCall,
  type WrittenCalls,
} from "./format.ts";
import { readJsonValues } from "./json-values.ts";

const mark = "[TOOL_CALLS]";

export const mistral: CallFormat = { starts: [mark], read };

export const mistralThinking: ThinkingMarks = { open: "[THINK]", close: "[/THINK]" };

/** Its templates refuse ids of another length. */
export const mistralCallId = (id: string, _name: string, index: number) =>
  /^[a-zA-Z0-9]{9}$/.test(id) ? id : `call${index.toString(36).padStart(5, "0")}`;

function read(text: string): WrittenCalls {
  const [content, ...parts] = text.split(mark);
  const found: WrittenCalls = { content: content ?? "", calls: [], problems: [] };
  for (const part of parts) {
    const calls = readPart(part);
    if (typeof calls !== "string") found.calls.push(...calls);
    else {
      found.problems.push(malformed(calls, mark + part));
      found.content += mark + part;
    }
  }
  return found;
}

function readPart(part: string): WrittenCall[] | string {
  const named = /^\s*([\w.-]+)\s*(?:\[CALL_ID\]([^[]*))?\[ARGS\]/.exec(part);
  const { values, problem } = readJsonValues(named ? part.slice(named[0].length) : part, ",");
  if (problem !== undefined) return problem;
  if (values.length === 0) return "nothing follows";
  if (!named) {
    return allOrProblem(
      values.flatMap(({ value }) => [value].flat().map((call) => callFromValue(call, ["arguments"]))),
    );
  }
  const [, name, id] = named;
  return allOrProblem(
    values.map(({ value, text }) =>
      callFromValue({ name, id, arguments: value }, ["arguments"], `"arguments":${text}`),
    ),
  );
}
