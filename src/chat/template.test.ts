// Slow: templates that work until their limit.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { testFolder } from "../temporary-folder.fixture.ts";
import type { ChatMessage, ToolCall } from "./messages.ts";
import { compileTemplate, findTemplate } from "./template.ts";
import type { TokenizerConfig } from "./tokenizer.ts";

const render = (plain: string, count = 1) =>
  compileTemplate({ plain }, {}, "the-model").renderText(
    Array.from({ length: count }, (_, index) => ({ role: "user" as const, content: `message ${index}` })),
    {},
  );

/** A text of 2^22 characters, as far as the limit allows it. */
const long = "{% set ns = namespace(s='ab') %}{% for i in range(21) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
const fifty = (use: string) => `${long}{% for i in range(50) %}{% set x = ${use} %}{% endfor %}`;
const half = "{% set a = 'a' * 1500000 %}";

test.each([
  ["a range without end", "{% for i in range(1000000000000) %}a{% endfor %}", /the range has/],
  ["nested loops", "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}"],
  [
    "a list that doubles",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
  ],
  [
    "shared lists",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
  ],
  ["a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", /RecursionError/],
  [
    "a macro that branches",
    "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
  ],
  ["a large power", "{{ 9 ** 999999 }}", /OverflowError/],
  ["a wide format", "{{ '%99999999999d' % 1 }}", /ValueError/],
  ["replace growth", "{% set a = 'a' * 30000 %}{{ a | replace('a', a) }}"],
  ["a bad search", `${half}{{ ('b' ~ a[:700000]) in a }}`],
  ["times", `${half}{% for i in range(99999) %}{{ strftime_now('%c' * 9999) }}{% endfor %}`],
  ...["ns.s | upper", "ns.s | title", "ns.s.strip()", "ns.s.split('a')", "ns.s[1:]", "'x' in ns.s", "ns.s == ns.s"].map(
    (use): [string, string] => [use, fifty(use)],
  ),
])(
  "a chat template with %s gives one clear error and does not stop the process",
  (_, template, reason = /its work is far more/) => {
    const started = performance.now();
    expect(() => render(template)).toThrow(reason as RegExp);
    expect(() => render(template)).toThrow(/^the chat template of the-model refuses these messages/);
    expect(performance.now() - started).toBeLessThan(15_000);
  },
);

test.each([
  ["blanks", `{% ${" ".repeat(200_000)}`],
  ["many tags with blanks", `{%${" ".repeat(2000)}`.repeat(900)],
  ["comments", "{#".repeat(500_000)],
  ["raw tags", `{% raw %}${"{% ".repeat(300_000)}`],
  ["parentheses", `{{ ${"(".repeat(100_000)}1`],
  ["signs", `{{ ${"-".repeat(300_000)}1 }}`],
  ["blocks", "{% if true %}".repeat(100_000)],
  ["a file of 4 MB", "a".repeat(2 ** 22)],
])("a template of %s is refused in linear time", (_, template) => {
  const started = performance.now();
  expect(() => render(template)).toThrow("the chat template of the-model cannot be parsed");
  expect(performance.now() - started).toBeLessThan(10_000);
});

test("a template may loop over ten thousand messages, also after an endless one", () => {
  expect(() => render("{% for i in range(1000000000) %}{% endfor %}")).toThrow(UserError);
  const text = render(
    "{% for m in messages %}{% for i in range(9) %}{{ m.content[i] }}{% endfor %}{% endfor %}",
    10_000,
  );
  expect(text.length).toBe(90_000);
  expect(render("{{ range(2, 8, 3) | join(',') }} {{ range(3) | join(',') }} {{ range(3, 0, -1) | join(',') }}")).toBe(
    "2,5 0,1,2 3,2,1",
  );
});

test("a template may read a long message many times", () => {
  const { renderText } = compileTemplate(
    { plain: "{% for m in messages %}{{ (m.content | trim).split('x')[-1] }}{% endfor %}" },
    {},
    "m",
  );
  expect(renderText([{ role: "user", content: "a".repeat(5_000_000) }], {})).toHaveLength(5_000_000);
});

test("arguments of calls are rendered as they were written, unless they were changed", () => {
  const plain =
    "{{ messages[0].content }}{% for c in messages[-1].tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}";
  const { renderText } = compileTemplate({ plain }, {}, "m");
  const again = (argumentsText: string, changed?: Record<string, unknown>) => {
    const call: ToolCall = { id: "c", name: "f", arguments: changed ?? JSON.parse(argumentsText), argumentsText };
    const messages: ChatMessage[] = [
      { role: "user", content: "" },
      { role: "assistant", content: "", toolCalls: [call] },
    ];
    return renderText(messages, { addGenerationPrompt: false });
  };
  const text = '{"name": "x", "404": "a", "200": "b", "price": 100.0, "small": 1e-07}';
  expect(again(text)).toBe(text);
  expect(again('{"id":2512292042121000001}', { id: "2512292042121000001" })).toBe('{"id": 2512292042121000001}');
  expect(again('{"a": 1.0}', { a: 2 })).toBe('{"a": 2}');
  expect(again("not JSON", { a: 2 })).toBe('{"a": 2}');
});

const single = (name: string) => `${name}{{ messages[0].content }}{{ tools[0].function.name if tools }}`;

test("templates are found in all files that transformers reads", () => {
  const folder = testFolder("templates");
  const rendered = (config: TokenizerConfig, tools: { name: string }[] = []) => {
    const sources = findTemplate(folder, config);
    if (sources === undefined) return undefined;
    return compileTemplate(sources, config, "m").renderText([{ role: "user", content: "?" }], { tools });
  };
  expect(rendered({})).toBeUndefined();
  const list = [
    { name: "rag", template: single("rag") },
    { name: "tool_use", template: single("tools") },
  ];
  expect(rendered({ chat_template: list }, [{ name: "f" }])).toBe("tools?f");
  expect(() => rendered({ chat_template: list })).toThrow("no default chat template");
  expect(() => rendered({ chat_template: list.slice(0, 1) })).toThrow(/tokenizer_config.json has several .*\(rag\)/);
  mkdirSync(join(folder, "additional_chat_templates"));
  writeFileSync(join(folder, "additional_chat_templates", "tool_use.jinja"), single("file"));
  expect(rendered({ chat_template: single("config") }, [{ name: "f" }])).toBe("file?f");
  writeFileSync(join(folder, "chat_template.jinja"), single("main"));
  expect(rendered({ chat_template: list })).toBe("main?");
  expect(rendered({ chat_template: list }, [{ name: "f" }])).toBe("file?f");
});

test("templates see all special tokens that are set", () => {
  const plain =
    "{{ bos_token }}{{ image_token }}{{ messages[0].content }}{{ sep_token is defined }}{{ add_bos_token is defined }}";
  const config = { bos_token: "<s>", image_token: { content: "<i>" }, sep_token: null, add_bos_token: true };
  expect(compileTemplate({ plain }, config, "m").renderText([{ role: "user", content: "?" }], {})).toBe(
    "<s><i>?FalseFalse",
  );
});
