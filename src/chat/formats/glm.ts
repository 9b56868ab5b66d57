/** GLM 4.5 and later: `<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`. */
import { between, type CallFormat } from "./format.ts";
import { callFromTexts } from "./typed-value.ts";

const key = { open: "<arg_key>", close: "</arg_key>" };
const value = { open: "<arg_value>", close: "</arg_value>" };

export const glm: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", (body, tools) => {
    const texts: [string, string][] = [];
    const first = body.indexOf(key.open);
    const name = (first < 0 ? body : body.slice(0, first)).trim();
    if (/[\s<{]/.test(name)) return `${JSON.stringify(name.slice(0, 40))} is not a name`;
    for (let at = first; at >= 0 && at < body.length; ) {
      const keyEnd = body.indexOf(key.close, at);
      const start = body.indexOf(value.open, keyEnd);
      const end = body.indexOf(value.close, start);
      if (!body.startsWith(key.open, at) || keyEnd < 0 || start < 0 || end < 0) return `a ${key.open} has no value`;
      if (body.slice(keyEnd + key.close.length, start).trim() !== "") return `a ${key.open} has no value`;
      texts.push([body.slice(at + key.open.length, keyEnd).trim(), body.slice(start + value.open.length, end)]);
      at = skipSpace(body, end + value.close.length);
    }
    return callFromTexts(name, texts, tools);
  }),
};

function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && text.charAt(at).trim() === "") at++;
  return at;
}

/** Its turns have no end: the model ends a reply with the header of the next turn. */
export const glmEnds = ["<|user|>", "<|observation|>"];
