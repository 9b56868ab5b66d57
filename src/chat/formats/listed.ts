/** Calls as a list in JSON between marks, each `{"name": ..., "arguments": {...}}`. */
import { isObject } from "../../is-object.ts";
import {
  allOrProblem,
  between,
  type CallFormat,
  callFromValue,
  malformed,
  notJson,
  type ReadBody,
  type ReadCalls,
  type WrittenCalls,
} from "./format.ts";
import { endOfValue, readJsonValues } from "./json-values.ts";

const readList: ReadBody = (body) => {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (error) {
    return notJson(error);
  }
  return listOf(value);
};

function listOf(value: unknown) {
  if (!Array.isArray(value) && !isObject(value)) return "it is not a list";
  return allOrProblem([value].flat().map((call) => callFromValue(call, ["arguments", "parameters"])));
}

/** Nemotron Nano 2: `<TOOLCALL>[...]</TOOLCALL>`. */
export const nemotron: CallFormat = {
  starts: ["<TOOLCALL>"],
  read: between("<TOOLCALL>", "</TOOLCALL>", readList),
};

/** MiniMax M1: `<tool_calls>` and one call in JSON per line. */
export const minimaxM1: CallFormat = {
  starts: ["<tool_calls>"],
  read: between("<tool_calls>", "</tool_calls>", (body) => {
    const { values, problem } = readJsonValues(body, "\n");
    return problem ?? allOrProblem(values.map(({ value, text }) => callFromValue(value, ["arguments"], text)));
  }),
};

/** Lists, each after a mark and, in some models, before another mark. Otherwise a list ends where its JSON ends. */
const afterMark =
  (open: string, close: string): ReadCalls =>
  (text) => {
    const found: WrittenCalls = { content: "", calls: [], problems: [] };
    let from = 0;
    for (let at = text.indexOf(open); at >= 0; at = text.indexOf(open, from)) {
      const start = at + open.length;
      const next = text.indexOf(open, start);
      const part = text.slice(start, next < 0 ? undefined : next);
      const end = endOfValue(part);
      const calls = readList(part.slice(0, end), []);
      const isClosed = part.slice(end).trimStart().startsWith(close);
      found.content += text.slice(from, at);
      from = start + end + (isClosed ? part.slice(end).indexOf(close) + close.length : 0);
      if (typeof calls !== "string") found.calls.push(...[calls].flat());
      else {
        found.problems.push(malformed(calls, text.slice(at, from)));
        found.content += text.slice(at, from);
      }
    }
    found.content += text.slice(from);
    return found;
  };

/** Phi-4-mini and Granite 3: `<|tool_call|>[...]`, closed by `<|/tool_call|>` in Phi. */
export const phi4: CallFormat = { starts: ["<|tool_call|>"], read: afterMark("<|tool_call|>", "<|/tool_call|>") };

/** Granite 3.1 to 3.3: `<tool_call>[...]`, or as Granite 3.0. */
export const granite: CallFormat = {
  starts: ["<|tool_call|>", "<tool_call>"],
  read: (text, tools) =>
    text.includes("<|tool_call|>") ? phi4.read(text, tools) : afterMark("<tool_call>", "</tool_call>")(text, tools),
};
