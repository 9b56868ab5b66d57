import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type CallFormat, thinkTags, type WrittenCall } from "./formats/format.ts";
import { hermes } from "./formats/hermes.ts";
import { llama3 } from "./formats/llama3.ts";
import { mistral } from "./formats/mistral.ts";
import type { ReplyProblem } from "./messages.ts";
import { parseReply } from "./parse-reply.ts";

const add = (given: Record<string, unknown> = { a: 1 }, argumentsText = JSON.stringify(given)): WrittenCall => ({
  name: "add",
  arguments: given,
  argumentsText,
});
const spaced = add({ a: 1 }, '{"a": 1}');
const json = '{"name": "add", "arguments": {"a": 1}}';

describe.each<[string, CallFormat, [string, string, WrittenCall[], ReplyProblem["kind"][]][]]>([
  [
    "hermes",
    hermes,
    [
      ["no call", "no call", [], []],
      [`<tool_call>\n${json}\n</tool_call>`, "", [spaced], []],
      [`a<tool_call>${json}</tool_call>b<tool_call>${json}</tool_call>c`, "abc", [spaced, spaced], []],
      ['<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [spaced], []],
      [`<tool_call>${json}`, `<tool_call>${json}`, [], ["unclosed_tool_call"]],
      [
        `<tool_call>{"name": "add"}</tool_call> <tool_call>${json}</tool_call>`,
        '<tool_call>{"name": "add"}</tool_call> ',
        [spaced],
        ["malformed_tool_call"],
      ],
      ["<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", [], ["malformed_tool_call"]],
      ["<tool_call></tool_call>", "<tool_call></tool_call>", [], ["malformed_tool_call"]],
      ["</tool_call>", "</tool_call>", [], []],
    ],
  ],
  [
    "llama3",
    llama3,
    [
      ["no call", "no call", [], []],
      ['{"name": "add", "parameters": {"a": 1}}', "", [spaced], []],
      [' {"name":"add","parameters":{"a":"}"}}; {"name":"add","parameters":{}}', "", [add({ a: "}" }), add({})], []],
      ['<|python_tag|>{"name": "add", "parameters": {"a": 1}}', "", [spaced], []],
      ['{"answer": 42}', '{"answer": 42}', [], []],
      ['{"name": "add", "parameters": [1]}', '{"name": "add", "parameters": [1]}', [], ["malformed_tool_call"]],
      ['{"name": "add", "parameters": {"a"', '{"name": "add", "parameters": {"a"', [], ["malformed_tool_call"]],
      ["<|python_tag|>print(1)", "<|python_tag|>print(1)", [], ["malformed_tool_call"]],
    ],
  ],
  [
    "mistral",
    mistral,
    [
      ["no call", "no call", [], []],
      [`[TOOL_CALLS] [${json}, ${json}]`, "", [add(), add()], []],
      [
        'Well.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]x1[ARGS]{}',
        "Well.",
        [spaced, { ...add({}), writtenId: "x1" }],
        [],
      ],
      ["[TOOL_CALLS]", "[TOOL_CALLS]", [], ["malformed_tool_call"]],
      ["[TOOL_CALLS][1]", "[TOOL_CALLS][1]", [], ["malformed_tool_call"]],
    ],
  ],
])("%s", (_name, format, cases) => {
  test.each(cases)("%s", (text, content, calls, problems) => {
    const found = format.read(text, []);
    expect(found).toMatchObject({ content, calls });
    expect(found.problems.map(({ kind }) => kind)).toEqual(problems);
  });

  test("never throws, and removes only the text of calls", () => {
    const piece = fc.constantFrom(
      "<tool_call>",
      "</tool_call>",
      "[TOOL_CALLS]",
      "[ARGS]",
      "<|python_tag|>",
      json,
      "{",
      "}",
      '"',
      ";",
      " a",
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 8 }), (pieces) => {
        const text = pieces.join("");
        const { content, calls } = format.read(text, []);
        if (calls.length === 0) expect(content).toBe(text);
      }),
      { numRuns: 300 },
    );
  });
});

describe("thinking", () => {
  const parse = (text: string, thinking = false, tools = false) =>
    parseReply(
      text,
      { thinking: thinkTags, calls: hermes },
      { thinking, tools: tools ? [{ name: "add" }] : [], callId: (index) => `id${index}` },
    );

  test.each<[string, boolean, { content: string; reasoning?: string }, ReplyProblem["kind"][]]>([
    ["an answer ", false, { content: "an answer " }, []],
    ["<think>\nhm\n</think>\n\nyes\n", false, { content: "yes", reasoning: "hm" }, []],
    ["<think>\n\n</think>\n\nyes", false, { content: "yes", reasoning: "" }, []],
    ["hm\n</think>\n\nyes", true, { content: "yes", reasoning: "hm" }, []],
    ["hm</think>yes</think>", false, { content: "yes</think>", reasoning: "hm" }, []],
    ["<think>hm", false, { content: "", reasoning: "hm" }, ["unclosed_thinking"]],
    ["hm", true, { content: "", reasoning: "hm" }, ["unclosed_thinking"]],
    ["one <think> two", false, { content: "one <think> two" }, []],
  ])("%j, begun by the prompt: %s", (text, begun, expected, problems) => {
    const { toolCalls, problems: told, ...rest } = parse(text, begun);
    expect(rest).toEqual(expected);
    expect(told.map(({ kind }) => kind)).toEqual(problems);
    expect(toolCalls).toEqual([]);
  });

  test("a call inside thinking is not parsed; a call after it is, if tools were offered", () => {
    const call = `<tool_call>${json}</tool_call>`;
    const text = `<think>${call}?</think>Now. ${call}`;
    expect(parse(text, false, true)).toEqual({
      content: "Now.",
      reasoning: `${call}?`,
      toolCalls: [{ id: "id0", ...spaced }],
      problems: [],
    });
    expect(parse(text)).toMatchObject({ content: `Now. ${call}`, toolCalls: [] });
  });
});
