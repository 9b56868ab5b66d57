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

/** A list after a mark and, in some models, another mark after it. Otherwise the list ends where its JSON ends. */
const afterMark =
  (open: string, close: string): ReadCalls =>
  (text) => {
    const at = text.indexOf(open);
    if (at < 0) return { content: text, calls: [], problems: [] };
    const start = at + open.length;
    const end = start + endOfValue(text.slice(start));
    const found = readList(text.slice(start, end), []);
    if (typeof found === "string") return { content: text, calls: [], problems: [malformed(found, text.slice(at))] };
    const rest = text.slice(end).trimStart();
    const content = text.slice(0, at) + (rest.startsWith(close) ? rest.slice(close.length) : rest);
    return { content, calls: [found].flat(), problems: [] };
  };

/** Phi-4-mini and Granite 3: `<|tool_call|>[...]`, closed by `<|/tool_call|>` in Phi. */
export const phi4: CallFormat = { starts: ["<|tool_call|>"], read: afterMark("<|tool_call|>", "<|/tool_call|>") };

/** Granite 3.1 to 3.3: `<tool_call>[...]`, or as Granite 3.0. */
export const granite: CallFormat = {
  starts: ["<|tool_call|>", "<tool_call>"],
  read: (text, tools) =>
    text.includes("<|tool_call|>") ? phi4.read(text, tools) : afterMark("<tool_call>", "</tool_call>")(text, tools),
};
