/**
 * Qwen3-Coder, Qwen3.5, Nemotron 3: `<tool_call><function=add><parameter=a>1</parameter></function></tool_call>`. Seed-OSS has the
 * same elements with other marks.
 */
import { between, type CallFormat, type ReadBody } from "./format.ts";
import { readTags, withoutLineEnds } from "./tags.ts";
import { callFromTexts } from "./typed-value.ts";

const element = { before: "<function=", after: ">", close: "</function>" };
const parameter = { before: "<parameter=", after: ">", close: "</parameter>" };

const readFunction: ReadBody = (body, tools) => {
  const found = readTags(body, element);
  if (typeof found === "string") return found;
  const [first] = found;
  if (first === undefined || found.length > 1) return `it has ${found.length} functions instead of one`;
  const parameters = readTags(first[1], parameter);
  if (typeof parameters === "string") return parameters;
  return callFromTexts(
    first[0],
    parameters.map(([key, text]) => [key, withoutLineEnds(text)]),
    tools,
  );
};

export const qwen3Coder: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", readFunction),
};

export const seed: CallFormat = {
  starts: ["<seed:tool_call>"],
  read: between("<seed:tool_call>", "</seed:tool_call>", readFunction),
};
