/** The formats of rows, which of their tokens are learned, and what is refused. */
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { openChat } from "../backends/backends.ts";
import { parseJson } from "../base/json.ts";
import type { Chat } from "../chat/types.ts";
import { composeConfig } from "../config/compose.ts";
import { openDataset } from "../data/open-dataset.ts";
import { characterChat, scriptedSampler } from "../testing/scripted.ts";
import { toSequences } from "../trajectories/batch.ts";
import { readPair } from "./dpo.ts";
import { checkExample, rowSteps, type TrainOn } from "./row-steps.ts";
import { limitLength, readRow } from "./rows.ts";

const chat = characterChat();
const vision = "the model reads only text";
const at = "rows.jsonl:3";

/** The text of each sequence, with what is learned in brackets. */
async function learned(row: unknown, trainOn: TrainOn = "all_assistant_messages", by: Chat = chat): Promise<string[]> {
  const steps = await rowSteps(readRow(row, at), { chat: by, vision }, trainOn);
  const { sequences } = toSequences({ name: "row", steps, reward: null });
  return sequences.map(({ tokens, trained }) => {
    let text = "";
    let open = false;
    for (const [index, token] of tokens.entries()) {
      const flag = index > 0 && trained[index - 1] === 1;
      if (flag !== open) text += flag ? "[" : "]";
      open = flag;
      text += by.decode([token]);
    }
    return text + (open ? "]" : "");
  });
}

const user = (content: string) => ({ role: "user", content });
const assistant = (content: string, more: object = {}) => ({ role: "assistant", content, ...more });
const dialog = [user("a"), assistant("b"), user("c"), assistant("d")];
const call = { id: "1", type: "function", function: { name: "f", arguments: '{"x":1}' } };

describe("a row teaches", () => {
  it.each<[string, unknown, TrainOn, string[]]>([
    [
      "every reply",
      { messages: dialog },
      "all_assistant_messages",
      ["<|user|>a<|end|><|assistant|>[b<|end|>]<|user|>c<|end|><|assistant|>[d<|end|>]"],
    ],
    [
      "the last reply",
      { messages: dialog },
      "last_assistant_message",
      ["<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[d<|end|>]"],
    ],
    [
      "replies without a weight of 0",
      { messages: [user("a"), assistant("b", { weight: 0 }), user("c"), assistant("d", { weight: 1 })] },
      "all_assistant_messages",
      ["<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[d<|end|>]"],
    ],
    ["every message", { messages: dialog.slice(0, 2) }, "all_messages", ["<|user|>[a<|end|>]<|assistant|>[b<|end|>]"]],
    ["every token", { messages: dialog.slice(0, 2) }, "all_tokens", ["<|user|>[a<|end|><|assistant|>b<|end|>]"]],
    [
      "the marked messages",
      { messages: [{ ...user("a"), trainable: true }, assistant("b", { trainable: false })] },
      "customized",
      ["<|user|>[a<|end|>]"],
    ],
    ["a completion", { prompt: "ab", completion: "c" }, "all_assistant_messages", ["ab[c<|end|>]"]],
    [
      "a completion of messages, not the replies of its prompt",
      { prompt: dialog.slice(0, 3), completion: [assistant("d")] },
      "all_assistant_messages",
      ["<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[d<|end|>]"],
    ],
    ["text", { text: "abc" }, "all_assistant_messages", ["a[bc<|end|>]"]],
    [
      "the tokens with labels",
      { input_ids: [102, 103, 104, 105], labels: [-100, 103, -100, 105] },
      "all_assistant_messages",
      ["a[b]c[d]"],
    ],
    [
      "ShareGPT's conversations",
      {
        system: "s",
        conversations: [
          { from: "human", value: "a" },
          { from: "gpt", value: "b" },
        ],
      },
      "all_assistant_messages",
      ["<|system|>s<|end|><|user|>a<|end|><|assistant|>[b<|end|>]"],
    ],
    [
      "Alpaca's output",
      { instruction: "a", input: "x", output: "b", history: [["h", "i"]] },
      "last_assistant_message",
      ["<|user|>h<|end|><|assistant|>i<|end|><|user|>a\nx<|end|><|assistant|>[b<|end|>]"],
    ],
  ])("%s", async (_, row, trainOn, expected) => {
    expect(await learned(row, trainOn)).toEqual(expected);
  });

  it("tool calls, with tools that a table stores as JSON", async () => {
    const messages = [
      user("a"),
      assistant("", { tool_calls: [call] }),
      { role: "tool", content: "r", tool_call_id: "1" },
      assistant("b"),
    ];
    const tools = JSON.stringify([{ type: "function", function: { name: "f", parameters: { type: "object" } } }]);
    const [text] = await learned({ messages, tools }, "last_assistant_turn");
    expect(text).toContain(
      '<|assistant|>[<tool_call>{"name":"f","arguments":{"x":1}}</tool_call><|end|>]<|tool|>r<|end|><|assistant|>[b<|end|>]',
    );
    expect(text).toMatch(/^<\|system\|>tools: /);
  });

  it("the same from a Parquet file, whose columns are lists of structures and mostly null", async () => {
    const { size, task } = await openDataset(join(import.meta.dirname, "rows.fixture.parquet"));
    const texts = Array.from({ length: size - 1 }, (_, index) => learned(task(index).row));
    expect(await Promise.all(texts)).toEqual([
      ["<|user|>a<|end|><|assistant|>[b<|end|>]"],
      [
        expect.stringMatching(
          /^<\|system\|>tools: .*<\|assistant\|>\[<tool_call>\{"name":"f","arguments":\{"x":1\}\}<\/tool_call><\|end\|>\]<\|tool\|>1<\|end\|><\|assistant\|>b<\|end\|><\|user\|>c<\|end\|><\|assistant\|>\[d<\|end\|>\]$/,
        ),
      ],
      ["a [b<|end|>]"],
    ]);
    expect(readRow(task(3).row, at)).toEqual({
      kind: "tokens",
      tokens: Int32Array.of(1, 2, 3),
      trained: Uint8Array.of(0, 1),
    });
  });

  it("each reply in a sequence of its own, if the template drops earlier thinking", async () => {
    const dropping: Chat = {
      ...chat,
      renderText: (messages, options) => {
        const last = messages.findLastIndex(({ role }) => role === "user");
        return chat.renderText(
          messages.map((message, index) => (index < last ? { ...message, reasoning: undefined } : message)),
          options,
        );
      },
    };
    dropping.renderGuarded = (...given) => ({ text: dropping.renderText(...given), seam: undefined });
    dropping.render = (messages, options) => chat.encode(dropping.renderText(messages, options));
    dropping.renderLater = async (messages, options) => dropping.render(messages, options);
    const messages = [
      user("a"),
      assistant("b", { reasoning_content: "t" }),
      user("c"),
      assistant("d", { reasoning_content: "u" }),
    ];
    expect(await learned({ messages }, "all_assistant_messages", dropping)).toEqual([
      "<|user|>a<|end|><|assistant|>[<think>t</think>b<|end|>]",
      "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[<think>u</think>d<|end|>]",
    ]);
  });
});

describe("nulls that tables of Arrow add", () => {
  const weather = {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: null, default: null }, amount: null },
      required: ["city"],
    },
  };
  const called = (given: object) =>
    assistant("", { tool_calls: [{ function: { name: "weather", arguments: given } }] });

  it("are left out of schemas and calls, and others stay", () => {
    const row = { messages: [user("a"), called({ city: null, amount: null })], tools: [{ function: weather }] };
    expect(readRow(row, "row 1")).toMatchObject({
      tools: [
        {
          parameters: {
            type: "object",
            properties: { city: { type: "string", default: null } },
            required: ["city"],
          },
        },
      ],
      messages: [{}, { toolCalls: [{ arguments: { city: null } }] }],
    });
    const example = readRow(row, "row 1");
    expect(JSON.stringify(example)).not.toMatch(/amount|enum/);
  });

  it("tool_defs is refused, since it would be ignored", () => {
    const row = { messages: dialog, tools: null, tool_defs: '[{"name": "weather"}]' };
    expect(() => readRow(row, "row 1")).toThrow(/row 1: tool_defs is not supported/);
  });
});

it("arguments keep their spelling", () => {
  const line = '{"arguments": {"b": 100.0, "404": 12345678901234567890}}';
  const given = parseJson(line) as { arguments: object };
  const calls = [
    { function: { name: "f", arguments: given.arguments } },
    { function: { name: "f", arguments: '{"x":1e-07}' } },
  ];
  expect(readRow({ messages: [user("a"), assistant("", { tool_calls: calls })] }, "row 1")).toMatchObject({
    messages: [
      {},
      {
        toolCalls: [
          { arguments: { 404: "12345678901234567890" }, argumentsText: '{"b": 100.0, "404": 12345678901234567890}' },
          { argumentsText: '{"x":1e-07}' },
        ],
      },
    ],
  });
});

it.each<[unknown, string]>([
  [{ question: "a" }, "a row needs messages, conversations, prompt and completion"],
  [{ messages: [] }, "messages is empty"],
  [{ messages: [{ role: "bot", content: "a" }] }, 'messages[0].role is "bot"'],
  [{ messages: [user("a"), { role: "assistant", content: null }] }, "messages[1].content is missing"],
  [{ messages: [user("a"), assistant("b", { weight: 0.5 })] }, "weight is 0.5; it must be 0 or 1"],
  [{ messages: [{ ...user("a"), weight: 1 }] }, "only an assistant's message has a weight"],
  [
    { messages: [user("a"), assistant("", { tool_calls: [{ function: { name: "f", arguments: "{" } }] })] },
    "is not JSON",
  ],
  [{ messages: [user("a")], tools: "[" }, "tools is not JSON"],
  [{ input_ids: [1, 2], labels: [1, 3] }, "a label is its token or -100"],
  [{ input_ids: [1.5, 2] }, "integers"],
  [{ conversations: [{ from: "alien", value: "a" }] }, 'from is "alien"'],
  [{ messages: [{ role: "user", content: [{ type: "video" }] }] }, "only text and images are supported"],
  [{ messages: [user("a")], images: ["x.png"] }, "1 images, but only 0 parts"],
  [{ messages: [user("a")], images: "x.png" }, "images must be a list"],
  [{ prompt: "a", completion: "b", images: ["x.png"] }, "images need messages with parts of type image"],
  [{ prompt: "", completion: "" }, "prompt and completion are empty"],
  [{ text: "" }, "text is empty"],
  [{ input_ids: [1, 2], completion_mask: [0, 1] }, "completion_mask is not supported"],
  [{ messages: [user("a"), assistant("b")], functions: [] }, "functions is not supported"],
  [{ messages: [user("a"), assistant("", { function_call: call.function })] }, "messages[1].function_call is not"],
  [{ messages: [{ ...user("a"), tool_calls: [call] }] }, "only an assistant's message has tool calls"],
  [{ messages: [user("a")], tools: [{ name: "f", description: 3 }] }, "tools[0].description must be text"],
  [{ messages: [user("a")], tools: [{ name: "f", parameters: "x" }] }, "tools[0].parameters must be a JSON schema"],
  [{ messages: [{ role: "user", content: 1 }] }, "messages[0].content must be text or a list of parts"],
  [{ messages: [user("a\ud800")] }, "messages[0].content has half of a surrogate pair"],
  [{ conversations: [{ from: "constructor", value: "a" }] }, 'from is "constructor"'],
  [{ system: "s", conversations: [{ from: "human" }] }, "conversations[0].value is missing"],
  [{ system: 4, conversations: [{ from: "human", value: "a" }] }, "system must be text"],
  [{ instruction: "a", output: "b", history: [["x"]] }, "history[0] must be an instruction and its reply"],
])("%j is refused at its line", (row, message) => {
  expect(() => readRow(row, at)).toThrow(message);
  expect(() => readRow(row, at)).toThrow(/^rows\.jsonl:3/);
});

it.each<[unknown, TrainOn, string]>([
  [{ messages: [assistant("a")] }, "all_assistant_messages", "no prompt"],
  [{ messages: dialog }, "customized", 'message 1 has no "trainable"'],
  [{ messages: [user("a")] }, "all_assistant_messages", "none of its messages is learned"],
  [{ messages: [...dialog, user("e")] }, "last_assistant_turn", "none of its messages is learned"],
  [
    { messages: [user("a"), assistant("b", { weight: 0 })] },
    "all_assistant_messages",
    "none of its messages is learned",
  ],
  [{ input_ids: [1, 2], labels: [-100, -100] }, "all_assistant_messages", "labels are all -100"],
  [{ input_ids: [1, 300] }, "all_assistant_messages", "input_ids has 300, but the model has only 200 tokens"],
  [
    { messages: [{ role: "user", content: [{ type: "image", image: "x.png" }] }, assistant("b")] },
    "all_assistant_messages",
    "message 1 (user) has an image, but the model reads only text",
  ],
])("%j is refused with %s without being encoded", async (row, trainOn, message) => {
  await expect(checkExample(readRow(row, at), { chat, vision, vocabularySize: 200 }, trainOn, false)).rejects.toThrow(
    message,
  );
});

const gemma = openChat(join(import.meta.dirname, "..", "chat", "fixtures", "gemma"), composeConfig().config);
const image = { type: "image", image: "missing.png" };

it.each<[string, unknown, TrainOn, string]>([
  ["a template refuses", [user("a"), user("b"), assistant("c")], "all_assistant_messages", "Roles must alternate"],
  ["a template refuses as a whole", [user("a"), user("b"), assistant("c")], "all_messages", "Roles must alternate"],
  [
    "names a missing image",
    [{ role: "user", content: [image] }, assistant("c")],
    "all_assistant_messages",
    "message 1 (user): the image file missing.png does not exist",
  ],
  [
    "shows an image in a reply",
    [user("a"), { role: "assistant", content: [image] }],
    "all_assistant_messages",
    "message 2 (assistant) has an image; only user and tool messages",
  ],
])("a row that %s is refused before it is encoded", async (_, messages, trainOn, message) => {
  const parts = { chat: await gemma, vision: scriptedSampler(() => "").vision, vocabularySize: 200 };
  await expect(checkExample(readRow({ messages }, at), parts, trainOn, true)).rejects.toThrow(message);
});

it.each<[string, unknown, string[]]>([
  ["TRL's text", { prompt: "a ", chosen: "b", rejected: "c" }, ["a [b<|end|>]", "a [c<|end|>]"]],
  [
    "TRL's text with an implicit prompt",
    { chosen: "is it? yes", rejected: "is it? no" },
    ["is it?[ yes<|end|>]", "is it?[ no<|end|>]"],
  ],
  [
    "TRL's messages",
    { prompt: [user("a")], chosen: [assistant("b")], rejected: [assistant("c")] },
    ["<|user|>a<|end|><|assistant|>[b<|end|>]", "<|user|>a<|end|><|assistant|>[c<|end|>]"],
  ],
  [
    "TRL's messages with an implicit prompt",
    { chosen: dialog, rejected: [...dialog.slice(0, 3), assistant("e")] },
    [
      "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[d<|end|>]",
      "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>[e<|end|>]",
    ],
  ],
  [
    "OpenAI's",
    { input: { messages: [user("a")] }, preferred_output: [assistant("b")], non_preferred_output: [assistant("c")] },
    ["<|user|>a<|end|><|assistant|>[b<|end|>]", "<|user|>a<|end|><|assistant|>[c<|end|>]"],
  ],
])("a pair of %s", async (_, row, expected) => {
  const { chosen, rejected } = readPair(row, at);
  for (const [index, example] of [chosen, rejected].entries()) {
    const steps = await rowSteps(example, { chat, vision }, "all_assistant_messages");
    const { promptTokens, tokens } = steps[0]!;
    expect(`${chat.decode(promptTokens)}[${chat.decode(tokens)}]`).toBe(expected[index]);
    expect(steps).toHaveLength(1);
  }
});

it.each<[unknown, string]>([
  [{ prompt: "a", chosen: "b" }, "a pair needs chosen and rejected"],
  [{ prompt: [user("a")], chosen: [user("b")], rejected: [assistant("c")] }, "chosen has no message of the assistant"],
  [
    { prompt: [user("a")], chosen: [assistant("b", { weight: 0 })], rejected: [assistant("c")] },
    "chosen has no message of the assistant",
  ],
  [{ prompt: "a", chosen: 5, rejected: "c" }, "chosen must be text or a list of messages"],
  [{ chosen: [assistant("b")], rejected: [assistant("c")] }, "chosen and rejected do not begin with the same prompt"],
  [{ prompt: "a", chosen: "b", rejected: "c", images: ["x.png"] }, "images need messages with parts of type image"],
])("the pair %j is refused at its line", (row, message) => {
  expect(() => readPair(row, at)).toThrow(message);
  expect(() => readPair(row, at)).toThrow(/^rows\.jsonl:3/);
});

it("a pair has the images of its column, also with an implicit prompt", () => {
  const shown = { role: "user", content: [{ type: "image" }] };
  const [chosen, rejected, images] = [[assistant("b")], [assistant("c")], ["x.png"]];
  for (const row of [
    { prompt: [shown], chosen, rejected, images },
    { chosen: [shown, ...chosen], rejected: [shown, ...rejected], images },
  ]) {
    const pair = readPair(row, at);
    for (const example of [pair.chosen, pair.rejected]) {
      expect(example).toMatchObject({ messages: [{ content: [{ type: "image", image: "x.png" }] }, {}] });
    }
  }
});

it("cut from the left, all steps of a sequence lose the same tokens", async () => {
  const steps = await rowSteps(readRow({ messages: dialog }, at), { chat, vision }, "all_assistant_messages");
  const cut = limitLength(steps, { most: 8, truncation: "left" });
  const { sequences } = toSequences({ name: "row", steps: cut.steps, reward: null });
  expect(sequences.map(({ tokens }) => chat.decode(tokens))).toEqual(["b<|end|><|user|>c<|end|><|assistant|>d<|end|>"]);
  expect(limitLength(steps, { most: 100, truncation: "error" }).change).toBe("none");
});
