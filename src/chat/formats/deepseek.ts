/**
 * DeepSeek V3 and R1 write `<｜tool▁call▁begin｜>function<｜tool▁sep｜>add` and the arguments as a block of JSON, V3.1 writes
 * `<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}`. Both are in one section.
 */
import { between, type CallFormat, callOfParts, inSection, type ReadBody } from "./format.ts";

const separator = "<｜tool▁sep｜>";
const begin = "<｜tool▁calls▁begin｜>";
const fence = "```";

const readCall: ReadBody = (body) => {
  const at = body.indexOf(separator);
  if (at < 0) return `it has no ${separator}`;
  const before = body.slice(0, at).trim();
  const after = body.slice(at + separator.length);
  const block = after.indexOf(`${fence}json`);
  if (before !== "function" || block < 0) return named(before, after);
  const end = after.indexOf(fence, block + fence.length);
  return named(after.slice(0, block).trim(), after.slice(block + `${fence}json`.length, end < 0 ? undefined : end));
};

const named = (name: string, json: string) => (name === "" ? "it has no name" : callOfParts(name, json));

const one = between("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", readCall);

export const deepseek: CallFormat = {
  starts: [begin],
  read: inSection(begin, "<｜tool▁calls▁end｜>", one),
};
