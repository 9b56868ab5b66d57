/** Kimi K2: `<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>` in a section. */
import { between, type CallFormat, callOfParts, inSection } from "./format.ts";

const begin = "<|tool_calls_section_begin|>";
const separator = "<|tool_call_argument_begin|>";

const one = between("<|tool_call_begin|>", "<|tool_call_end|>", (body) => {
  const at = body.indexOf(separator);
  if (at < 0) return `it has no ${separator}`;
  const id = body.slice(0, at).trim();
  const name = id.replace(/^functions\./, "").replace(/:\d+$/, "");
  if (name === "") return "it has no name";
  const call = callOfParts(name, body.slice(at + separator.length));
  return typeof call === "string" ? call : { ...call, writtenId: id };
});

export const kimiK2: CallFormat = { starts: [begin], read: inSection(begin, "<|tool_calls_section_end|>", one) };

/** The results of calls refer to these ids, which count the calls of a conversation. */
export const kimiCallId = (id: string, name: string, index: number) =>
  /^functions\..+:\d+$/.test(id) ? id : `functions.${name}:${index}`;
