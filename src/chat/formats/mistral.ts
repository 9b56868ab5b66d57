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
    const { calls, rest } = readPart(part);
    if (typeof calls === "string") found.problems.push(malformed(calls, mark + part));
    else found.calls.push(...calls);
    found.content += typeof calls === "string" ? mark + part : rest;
  }
  return found;
}

function readPart(part: string): { calls: WrittenCall[] | string; rest: string } {
  const named = /^\s*([\w.-]+)\s*(?:\[CALL_ID\]([^[]*))?\[ARGS\]/.exec(part);
  const { values, rest, problem } = readJsonValues(named ? part.slice(named[0].length) : part, ",");
  // After a call, the model may go on with text, but half a call is none.
  const isText = values.length > 0 && !/^[[{"]/.test(rest);
  if (problem !== undefined && !isText) return { calls: problem, rest };
  if (values.length === 0) return { calls: "nothing follows", rest };
  if (!named) {
    const calls = values.flatMap(({ value }) => [value].flat().map((call) => callFromValue(call, ["arguments"])));
    return { calls: allOrProblem(calls), rest };
  }
  const [, name, id] = named;
  const calls = values.map(({ value, text }) =>
    callFromValue({ name, id, arguments: value }, ["arguments"], `"arguments":${text}`),
  );
  return { calls: allOrProblem(calls), rest };
}
