import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { UserError } from "../base/errors.ts";
import { testFolder } from "../temporary-folder.fixture.ts";
import { assembleChat, loadChat, parseReply } from "./chat.ts";
import { openConversation } from "./conversation.ts";
import type { ChatMessage, ReplyProblem } from "./messages.ts";
import { type CallFormat, thinkTags, type WrittenCall } from "./reply-format.ts";
import { hermes, llama3, mistral } from "./reply-formats.ts";
import { openTokenizer } from "./tokenizer.ts";

describe("chat", () => {
  const fixture = (family: string) => fileURLToPath(new URL(`./fixtures/${family}`, import.meta.url));
  const hello = [{ role: "user", content: "hello" }] as const;

  /** A copy of a fixture to break. */
  let folder: string;
  beforeEach(() => {
    folder = testFolder("chat");
    cpSync(fixture("llama"), folder, { recursive: true });
  });

  const edit = (file: string, change: (content: Record<string, unknown>) => void) => {
    const path = join(folder, file);
    const content = JSON.parse(readFileSync(path, "utf8"));
    change(content);
    writeFileSync(path, JSON.stringify(content));
  };

  describe("the source of the template", () => {
    const config = (change: Record<string, unknown>) =>
      edit("tokenizer_config.json", (content) => Object.assign(content, change));

    test("chat_template.jinja wins over tokenizer_config.json, which may contain one or several", () => {
      config({ chat_template: "old {{ messages[0].content }}" });
      expect(loadChat(folder).renderText(hello)).toMatch(/^<\|begin_of_text\|>/);
      rmSync(join(folder, "chat_template.jinja"));
      expect(loadChat(folder).renderText(hello)).toBe("old hello");
      const several = [
        { name: "tool_use", template: "tools" },
        { name: "default", template: "{{ eos_token }}{{ pad_token is defined }}" },
      ];
      config({ chat_template: several, eos_token: { content: "<|eot_id|>", lstrip: false } });
      expect(loadChat(folder).renderText(hello)).toBe("<|eot_id|>False");
    });

    test("a base model without a template is refused, unless the plain renderer writes one message per line", () => {
      rmSync(join(folder, "chat_template.jinja"));
      expect(() => loadChat(folder)).toThrow(UserError);
      expect(() => loadChat(folder)).toThrow("has no chat template; it is probably a base model");
      const chat = loadChat(folder, { rendererName: "plain" });
      const messages = [{ role: "system", content: "a" }, ...hello] as const;
      expect(chat.renderText(messages)).toBe("a\nhello");
      // The tokenizer's own BOS, once.
      expect([...chat.render(messages)]).toEqual([chat.bosId, ...chat.encode("a\nhello")]);
      expect(
        loadChat(fixture("llama"))
          .render(hello)
          .filter((id) => id === chat.bosId).length,
      ).toBe(1);
    });
  });

  describe("bad folders", () => {
    test.each<[string, () => void, string]>([
      ["no tokenizer", () => rmSync(join(folder, "tokenizer.json")), "does not contain tokenizer.json"],
      ["a cut file", () => writeFileSync(join(folder, "tokenizer.json"), '{"mod'), "cannot read"],
      [
        "not a tokenizer",
        () => writeFileSync(join(folder, "tokenizer.json"), "{}"),
        "tokenizer.json: model is missing",
      ],
      ["a list", () => writeFileSync(join(folder, "tokenizer.json"), "null"), "tokenizer.json is not an object"],
      ["a cut configuration", () => writeFileSync(join(folder, "tokenizer_config.json"), "{"), "cannot read"],
      ["a wrong one", () => writeFileSync(join(folder, "tokenizer_config.json"), '{"eos_token": 2}'), "eos_token"],
      ["a broken template", () => writeFileSync(join(folder, "chat_template.jinja"), "{% if %}"), "cannot be parsed"],
    ])("%s", (_name, spoil, message) => {
      spoil();
      const open = () => loadChat(folder);
      expect(open).toThrow(UserError);
      expect(open).toThrow(message);
      expect(open).toThrow(folder);
    });

    test("an error thrown by a template names the model's folder and the reason", () => {
      const system = [{ role: "system", content: "x" }, ...hello] as const;
      expect(() => loadChat(fixture("gemma")).render(system)).toThrow(
        /the chat template of .*gemma refuses these messages \(system, user\): System role not supported/,
      );
    });

    test("without tokenizer_config.json there are no special ids", () => {
      rmSync(join(folder, "tokenizer_config.json"));
      const chat = loadChat(folder);
      expect([chat.bosId, chat.eosId, chat.padId]).toEqual([null, null, null]);
    });
  });

  describe("decoding", () => {
    const chat = loadChat(fixture("chatml"));

    test("ids of a padded vocabulary decode to nothing", () => {
      const known = chat.encode("hi");
      expect(chat.decode([99_999, ...known, 100_000])).toBe("hi");
      expect(chat.decode([99_999])).toBe("");
      expect(chat.decode([])).toBe("");
    });

    test("decoding restores any text, whole and piece by piece", () => {
      // Even white space before a carriage return; only lone surrogates, which are not text, may change.
      fc.assert(
        fc.property(fc.string({ unit: "grapheme", maxLength: 40 }), (text) => {
          const tokens = chat.encode(text);
          expect(chat.decode(tokens)).toBe(text);
          const decoder = chat.incrementalDecoder();
          let shown = "";
          for (const token of tokens) {
            shown += decoder.push(token);
            expect(text.startsWith(shown)).toBe(true);
          }
          expect(shown + decoder.end()).toBe(text);
        }),
        { numRuns: 300 },
      );
    });

    test("an incomplete character is held back, then replaced at the end", () => {
      const party = [...chat.encode("🎉")];
      expect(party.length).toBeGreaterThan(1);
      const decoder = chat.incrementalDecoder();
      expect(
        party
          .slice(0, -1)
          .map((token) => decoder.push(token))
          .join(""),
      ).toBe("");
      expect(decoder.push(party.at(-1)!)).toBe("🎉");
      decoder.push(party[0]!);
      expect(decoder.end()).toBe("\uFFFD");
      expect(decoder.end()).toBe("");
    });
  });

  test("the first prompt of a group is cached, unless the template writes the date", () => {
    const chat = loadChat(fixture("qwen"));
    const prompt = chat.render(hello);
    expect(chat.render(structuredClone(hello))).toBe(prompt);
    expect([...chat.render(hello)]).toEqual([...chat.encode(chat.renderText(hello))]);
    const tools = [{ name: "add", description: "adds" }];
    const others = [
      chat.render(hello, { addGenerationPrompt: false }),
      chat.render(hello, { tools }),
      chat.render(hello, { tools: [{ ...tools[0]!, description: "sums" }] }),
      chat.render([{ role: "system", content: "hello" }, ...hello]),
    ].map((tokens) => [...tokens]);
    expect(new Set([[...prompt], ...others].map(String)).size).toBe(5);

    const file = join(folder, "chat_template.jinja");
    writeFileSync(file, "{{ strftime_now('%Y') }} {% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}");
    const dated = loadChat(folder);
    vi.useFakeTimers({ now: new Date("2024-06-01") });
    try {
      const first = dated.decode(dated.render(hello));
      vi.setSystemTime(new Date("2025-06-01"));
      expect([first, dated.decode(dated.render(hello))]).toEqual(["2024 hello<|eot_id|>", "2025 hello<|eot_id|>"]);
    } finally {
      vi.useRealTimers();
    }
  });

  describe("a long text", () => {
    const long = (words: number) => Array.from({ length: words }, (_, index) => `word ${index % 97}`).join(", ");

    test("has the same tokens from another thread, alone and in a conversation", async () => {
      const chat = loadChat(fixture("qwen"));
      const text = long(6000);
      expect(await chat.encodeLater(text)).toEqual(chat.encode(text));
      const conversations = [openConversation(chat), openConversation(chat)] as const;
      const history: ChatMessage[] = [{ role: "user", content: text }];
      for (const said of ["yes", "no"]) {
        const turns = [conversations[0].begin(history), await conversations[1].beginLater(history)] as const;
        expect(turns[1].prompt).toEqual(turns[0].prompt);
        for (const turn of turns) turn.record({ tokens: Int32Array.of(...chat.encode(said), chat.stopIds[0]!) });
        history.push({ role: "assistant", content: said }, { role: "user", content: `${said}? ${text}` });
      }
    });

    test("is encoded once for the rollouts of a group; a short text is encoded on this thread", async () => {
      const { encode, decode, specials } = openTokenizer(fixture("qwen"));
      const sent: string[] = [];
      const chat = assembleChat({
        ...{ encode, decode, specials, format: {} },
        async encodeElsewhere(text) {
          sent.push(text);
          return encode(text);
        },
        renderText: (messages) => messages.map(({ content }) => content).join("\n"),
        ids: { bos: null, eos: null, pad: null },
      });
      const group = [{ role: "user", content: long(6000) }] as const;
      const prompts = await Promise.all(Array.from({ length: 8 }, () => chat.renderLater(group)));
      expect(new Set(prompts).size).toBe(1);
      expect(chat.render(group)).toBe(prompts[0]);
      await chat.renderLater(hello);
      expect(sent).toEqual([long(6000)]);
    });

    test("fails with the same error as on this thread if the model's folder is broken", async () => {
      const chat = loadChat(folder);
      rmSync(join(folder, "tokenizer.json"));
      const encoded = chat.encodeLater(long(6000));
      await expect(encoded).rejects.toThrow(UserError);
      await expect(encoded).rejects.toThrow(/does not contain tokenizer.json/);
    });
  });
});

describe("parse reply", () => {
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
        [`[TOOL_CALLS] [${json}, ${json}]`, "", [spaced, spaced], []],
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

    const quoting = `<tool_call>{"name": "add", "arguments": {"text": "up to </think>, <think>too</think>"}}</tool_call>`;
    const broken = "<tool_call>{bad </think> json}</tool_call>";
    test.each<[string, boolean, { reasoning?: string; content: string; calls: number }, number]>([
      [quoting, false, { content: "", calls: 1 }, 0],
      [`I fix it. ${quoting}`, false, { content: "I fix it.", calls: 1 }, 0],
      [`plan</think>${quoting}`, true, { reasoning: "plan", content: "", calls: 1 }, 0],
      [`plan</think>${quoting}`, false, { reasoning: "plan", content: "", calls: 1 }, 0],
      [`plan ${quoting}</think>yes`, true, { reasoning: `plan ${quoting}`, content: "yes", calls: 0 }, 0],
      // Calls that are lost are counted.
      [`plan ${quoting}`, true, { reasoning: `plan ${quoting}`, content: "", calls: 0 }, 1],
      [`plan ${quoting}</think>`, true, { reasoning: `plan ${quoting}`, content: "", calls: 0 }, 1],
      [`<think>plan ${quoting}</think>\n`, false, { reasoning: `plan ${quoting}`, content: "", calls: 0 }, 1],
      [`${quoting}</think>yes`, false, { reasoning: quoting, content: "yes", calls: 0 }, 1],
      [broken, false, { reasoning: "<tool_call>{bad", content: "json}</tool_call>", calls: 0 }, 1],
      [quoting.slice(0, -20), false, { content: quoting.slice(0, -20), calls: 0 }, 1],
      // A mark of a call in thinking is no call.
      [
        `I use <tool_call> then</think>${quoting}`,
        false,
        { reasoning: "I use <tool_call> then", content: "", calls: 1 },
        0,
      ],
      ["I use <tool_call> then</think>yes", true, { reasoning: "I use <tool_call> then", content: "yes", calls: 0 }, 0],
    ])("%j, begun by the prompt: %s, with tools", (text, begun, expected, problems) => {
      const { toolCalls, problems: found, reasoning, content } = parse(text, begun, true);
      const { calls, ...parts } = expected;
      expect({ ...(reasoning === undefined ? {} : { reasoning }), content }).toEqual(parts);
      expect([toolCalls.length, found.length]).toEqual([calls, problems]);
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
});
