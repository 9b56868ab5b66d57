/** Gemma 4: `<|tool_call>call:add{a:1,city:<|"|>Paris<|"|>}<tool_call|>`, any number of them. */
import { between, type CallFormat, callFromValue, deepest, type ThinkingMarks, type WrittenCall } from "./format.ts";

export const gemma4: CallFormat = {
  starts: ["<|tool_call>"],
  read: between("<|tool_call>", "<tool_call|>", readCall),
};

export const gemma4Thinking: ThinkingMarks = { open: "<|channel>thought", close: "<channel|>" };

/** After a call, the model ends its reply with the header of the result. */
export const gemma4Result = "<|tool_response>";

const quote = '<|"|>';

class NotGemma extends Error {}

function readCall(body: string): WrittenCall | string {
  const head = /^\s*call:([^{\s]+)\s*/.exec(body);
  const name = head?.[1];
  if (head === null || name === undefined) return "it does not begin with call: and a name";
  try {
    return callFromValue({ name, arguments: readObject(body, head[0].length) }, ["arguments"]);
  } catch (error) {
    if (error instanceof NotGemma) return error.message;
    throw error;
  }
}

/** Objects and lists in JSON's syntax, with names without quotation marks and texts between `<|"|>`. */
function readObject(text: string, start: number): unknown {
  let at = start;
  const fail = (what: string): never => {
    throw new NotGemma(`${what} at character ${at}`);
  };
  function take(mark: string): boolean {
    while (at < text.length && text.charAt(at).trim() === "") at++;
    if (!text.startsWith(mark, at)) return false;
    at += mark.length;
    return true;
  }
  function until(marks: RegExp): string {
    marks.lastIndex = at;
    const end = marks.exec(text)?.index ?? fail("an end is missing");
    const found = text.slice(at, end);
    at = end;
    return found;
  }
  function quoted(): string {
    const end = text.indexOf(quote, at);
    if (end < 0) fail("a text is not closed");
    const found = text.slice(at, end);
    at = end + quote.length;
    return found;
  }
  function value(depth: number): unknown {
    if (depth > deepest) fail(`more than ${deepest} levels`);
    if (take(quote)) return quoted();
    if (take("{")) return object(depth);
    if (take("[")) return list(depth);
    const written = until(/[,}\]]/g).trim();
    try {
      return JSON.parse(written);
    } catch {
      return written === "" ? fail("a value is missing") : written;
    }
  }
  function object(depth: number): Record<string, unknown> {
    const entries: [string, unknown][] = [];
    while (!take("}")) {
      const key = take(quote) ? quoted() : until(/[:,}]/g).trim();
      if (!take(":")) fail("a name has no value");
      entries.push([key, value(depth + 1)]);
      if (!take(",")) {
        if (!take("}")) fail("} is missing");
        break;
      }
    }
    return Object.fromEntries(entries);
  }
  function list(depth: number): unknown[] {
    const values: unknown[] = [];
    while (!take("]")) {
      values.push(value(depth + 1));
      if (!take(",")) {
        if (!take("]")) fail("] is missing");
        break;
      }
    }
    return values;
  }
  if (!take("{")) fail("{ is missing");
  const found = object(0);
  if (text.slice(at).trim() !== "") fail("text follows the arguments");
  return found;
}
