import { cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeEach, describe, expect, test } from "vitest";
import { rendererNames } from "../config/schema/training.ts";
import { testFolder } from "../temporary-folder.fixture.ts";
import { loadChat } from "./chat.ts";
import type { ChatMessage } from "./messages.ts";
import { checkTemplate, describeTemplate, renderers } from "./renderers.ts";

const fixture = (family: string) => fileURLToPath(new URL(`./fixtures/${family}`, import.meta.url));
const hello: ChatMessage[] = [{ role: "user", content: "hello" }];
const tools = [{ name: "add", description: "adds", parameters: { type: "object", properties: {} } }];

let folder: string;
beforeEach(() => {
  folder = testFolder("renderers");
});

/** A copy of a fixture with another template. */
function withTemplate(family: string, template: string): string {
  cpSync(fixture(family), folder, { recursive: true });
  writeFileSync(join(folder, "chat_template.jinja"), template);
  return folder;
}

test("the configuration lists the renderers", () => {
  expect(Object.keys(renderers)).toEqual(rendererNames);
});

test("an unknown renderer is refused with the known names, and one whose tokens are missing with the token", () => {
  expect(() => loadChat(fixture("qwen"), { rendererName: "qwen9" })).toThrow(
    expect.objectContaining({
      message: 'the renderer "qwen9" does not exist',
      hint: expect.stringContaining("hermes"),
    }),
  );
  expect(() => loadChat(fixture("llama"), { rendererName: "hermes" })).toThrow(
    "writes <|im_start|>, which is not a token",
  );
});

describe("tools", () => {
  test.each(["chatml", "gemma"])(
    "%s's template does not support them, so they are put into the first message",
    (family) => {
      const said: string[] = [];
      const chat = loadChat(fixture(family), { log: (line) => said.push(line) });
      const call = { id: "x", name: "add", arguments: { a: 1 }, argumentsText: '{"a": 1}' };
      const results = ["1", "2"].map((content): ChatMessage => ({ role: "tool", content, toolCallId: "x" }));
      const messages: ChatMessage[] = [
        ...hello,
        { role: "assistant", content: "Let me see.", toolCalls: [call] },
        ...results,
        { role: "user", content: "and?" },
      ];
      const text = chat.renderText(messages, { tools });
      for (const part of [
        '<tools>\n{"type":"function","function":{"name":"add"',
        'Let me see.\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>',
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\nand?",
      ]) {
        expect(text).toContain(part);
      }
      expect(chat.parse('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', { tools }).toolCalls).toEqual([
        { ...call, id: "call_0" },
      ]);
      expect(said).toEqual([expect.stringContaining("does not support tools: the system message describes them")]);
      // Nothing changes for calls without tools, whose prompts are the template's own.
      expect(chat.renderText(hello, { tools: [] })).toBe(chat.renderText(hello));
      expect(checkTemplate(chat)).toMatchObject({ rewrites: false, notContinuable: false });
    },
  );

  test("a system message of the agent's own keeps its place before the tools", () => {
    const chat = loadChat(fixture("chatml"));
    const text = chat.renderText([{ role: "system", content: "Be brief." }, ...hello], { tools });
    expect(text).toMatch(/^<\|im_start\|>system\nBe brief\.\n\nYou can call these functions:/);
    expect(text.match(/<\|im_start\|>system/g)).toHaveLength(1);
  });

  test("hermes gives them to a ChatML model, and reads its calls", () => {
    const chat = loadChat(fixture("chatml"), { rendererName: "hermes" });
    const text = chat.renderText([{ role: "system", content: "Be brief." }, ...hello], { tools });
    expect(text).toMatch(
      /^<\|im_start\|>system\nBe brief\.\n\n[\s\S]*<tools>\n\{"type": "function"[\s\S]*<\|im_end\|>\n<\|im_start\|>user\nhello<\|im_end\|>\n<\|im_start\|>assistant\n$/,
    );
    const reply = '<think>sum</think><tool_call>{"name": "add", "arguments": {}}</tool_call><|im_end|>';
    expect(chat.parse(chat.encode(reply), { tools })).toEqual({
      content: "",
      reasoning: "sum",
      toolCalls: [{ id: "call_0", name: "add", arguments: {}, argumentsText: "{}" }],
      problems: [],
    });
  });

  test("tools are refused if the format of calls is unknown", () => {
    const folder = withTemplate("chatml", "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}");
    expect(() => loadChat(folder).render(hello, { tools })).toThrow("does not recognize its format of tool calls");
    expect(loadChat(folder, { rendererName: "qwen" }).render(hello, { tools }).length).toBeGreaterThan(0);
  });

  test("a template that expects arguments as text gets text", () => {
    const template =
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments + '!' }}{% endfor %}{% endfor %}";
    const call = { id: "x", name: "add", arguments: { argument: 1 } };
    const messages: ChatMessage[] = [...hello, { role: "assistant", content: "", toolCalls: [call] }];
    expect(loadChat(withTemplate("chatml", template)).renderText(messages)).toBe('hello{"argument":1}!');
  });
});

describe("thinking", () => {
  test("is switched off by the template's own switch", () => {
    const ends = (options: object) => loadChat(fixture("qwen3"), options).renderText(hello).endsWith("</think>\n\n");
    expect([ends({}), ends({ disableThinking: true })]).toEqual([false, true]);
  });

  test("that the template always opens is closed at once", () => {
    const opens = withTemplate(
      "qwen3",
      "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}</think>".replace(
        "</think>",
        "{# </think> #}",
      ),
    );
    const chat = loadChat(opens);
    expect(chat.renderText(hello)).toBe("hello<|im_end|><think>\n");
    expect(chat.parse("hm</think>yes")).toMatchObject({ reasoning: "hm", content: "yes" });
    expect(chat.parse("hm")).toMatchObject({ reasoning: "hm", content: "", problems: [{ kind: "unclosed_thinking" }] });
    const silent = loadChat(opens, { disableThinking: true });
    expect(silent.renderText(hello)).toBe("hello<|im_end|><think>\n\n</think>\n\n");
    expect(silent.parse("yes")).toMatchObject({ content: "yes" });
  });

  test("settings without an effect are logged", () => {
    const said: string[] = [];
    const log = (line: string) => said.push(line);
    loadChat(fixture("qwen"), { disableThinking: true, reasoningEffort: "high", log });
    loadChat(fixture("qwen3"), { disableThinking: true, reasoningEffort: "medium", log });
    expect(said).toEqual([
      expect.stringContaining("disable_thinking has no effect"),
      expect.stringContaining("reasoning_effort has no effect"),
    ]);
  });
});

test("the end of a turn is found in the template and in generation_config.json", () => {
  const gemma = loadChat(fixture("gemma"));
  expect(gemma.stopIds.map((id) => gemma.decode([id]))).toEqual(["<end_of_turn>", "<eos>"]);
  cpSync(fixture("llama"), folder, { recursive: true });
  const plain = loadChat(folder);
  writeFileSync(join(folder, "generation_config.json"), JSON.stringify({ eos_token_id: [1, 5] }));
  expect(new Set(loadChat(folder).stopIds)).toEqual(new Set([...plain.stopIds, 1, 5]));
  writeFileSync(join(folder, "generation_config.json"), '{"eos_token_id": "x"}');
  expect(() => loadChat(folder)).toThrow("generation_config.json");
});

test.each<[string, object, Partial<ReturnType<typeof checkTemplate>>]>([
  ["chatml", {}, {}],
  ["chatml", { rendererName: "plain" }, {}],
  ["chatml", { rendererName: "hermes" }, {}],
  ["qwen", {}, {}],
  ["qwen3", {}, { dropsReasoning: true }],
  ["llama", {}, {}],
  ["gemma", {}, {}],
])("what %s %j does to earlier turns", (family, options, expected) => {
  const chat = loadChat(fixture(family), options);
  const found = checkTemplate(chat);
  expect(found).toEqual({ dropsReasoning: false, rewrites: false, notContinuable: false, ...expected });
  expect(describeTemplate(found, chat)).toHaveLength(Object.keys(expected).length);
});

test("a template that rewrites the beginning or hides replies is detected", () => {
  const counts = withTemplate(
    "chatml",
    "{{ messages|length }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}",
  );
  expect(checkTemplate(loadChat(counts))).toMatchObject({ rewrites: true });
  const moves = withTemplate(
    "chatml",
    "{% for m in messages %}{% if loop.last %}{{ tools }}{% endif %}{{ m.content + eos_token }}{% endfor %}",
  );
  expect(checkTemplate(loadChat(moves, { rendererName: "qwen" }))).toMatchObject({ rewrites: true });
  const refuses = withTemplate("chatml", "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}");
  expect(checkTemplate(loadChat(refuses)).refuses).toContain("one only");
  const hides = withTemplate(
    "chatml",
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
  );
  const chat = loadChat(hides);
  expect(checkTemplate(chat)).toMatchObject({ notContinuable: true });
  expect(describeTemplate(checkTemplate(chat), chat).join()).toContain("does not mark the end of a reply");
});
