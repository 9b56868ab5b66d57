/**
 * `<invoke name="add"><parameter name="a">1</parameter></invoke>` in a section: MiniMax M2, and DeepSeek V3.2 and V4, which write
 * `｜DSML｜` in each tag and say which parameters are strings.
 */
import { between, type CallFormat, inSection, type ReadCalls } from "./format.ts";
import { readTags } from "./tags.ts";
import { callFromTexts } from "./typed-value.ts";

function invocations(prefix: string): ReadCalls {
  const invoke = { before: `<${prefix}invoke name="`, close: `</${prefix}invoke>` };
  const parameter = { before: `<${prefix}parameter name="`, after: ">", close: `</${prefix}parameter>` };
  return between(invoke.before, invoke.close, (body, tools) => {
    const nameEnd = body.indexOf('">');
    if (nameEnd < 0) return "its name is not closed";
    const parameters = readTags(body.slice(nameEnd + '">'.length), parameter);
    if (typeof parameters === "string") return parameters;
    // The name of a parameter is read up to `>`: a quotation mark and, in DeepSeek's form, an attribute follow.
    const texts = parameters.map(([head, text]): [string, string, boolean | undefined] => {
      const [key = "", rest = ""] = head.split('"', 2).length === 2 ? [head.slice(0, head.indexOf('"')), head] : [head];
      return [key, text, rest.includes('string="true"') ? true : rest.includes('string="false"') ? false : undefined];
    });
    return callFromTexts(body.slice(0, nameEnd), texts, tools);
  });
}

export const minimax: CallFormat = {
  starts: ["<minimax:tool_call>"],
  read: inSection("<minimax:tool_call>", "</minimax:tool_call>", invocations("")),
};

const dsml = invocations("｜DSML｜");

export const deepseekV32: CallFormat = {
  starts: ["<｜DSML｜"],
  read: (text, tools) => {
    const section = text.includes("<｜DSML｜tool_calls>") ? "tool_calls" : "function_calls";
    return inSection(`<｜DSML｜${section}>`, `</｜DSML｜${section}>`, dsml)(text, tools);
  },
};
