/**
 * Llama 3: the whole reply is `{"name": ..., "parameters": {...}}`, or several of them separated by semicolons, optionally
 * after `<|python_tag|>`.
 */
import { type CallFormat, callFromValue, malformed, type WrittenCalls } from "./format.ts";
import { readJsonValues } from "./json-values.ts";

const tag = "<|python_tag|>";

export const llama3: CallFormat = { starts: ["{", tag], read };

function read(text: string): WrittenCalls {
  const tagged = text.trimStart().startsWith(tag);
  const body = tagged ? text.slice(text.indexOf(tag) + tag.length) : text;
  if (!tagged && !body.trimStart().startsWith("{")) return { content: text, calls: [], problems: [] };
  const { values, problem } = readJsonValues(body, ";");
  const calls = values.map(({ value, text: written }) => callFromValue(value, ["parameters", "arguments"], written));
  const wrong = problem ?? (calls.length === 0 ? "nothing follows" : calls.find((call) => typeof call === "string"));
  // All or nothing, since other JSON may be the answer itself.
  if (wrong === undefined) {
    return { content: "", calls: calls.filter((call) => typeof call !== "string"), problems: [] };
  }
  const meant = tagged || /"(name|parameters)"\s*:/.test(body);
  return { content: text, calls: [], problems: meant ? [malformed(wrong, text)] : [] };
}
