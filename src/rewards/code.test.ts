import { expect, test } from "vitest";
import { codeBlock, codeBlocks, sameJson, sameOutput } from "./code.ts";
import { outputText } from "./sandbox/types.ts";

test.each<[string, string, boolean]>([
  ["1", "1.0", true],
  ["-0.0", "0", true],
  ["9007199254740993", "9007199254740992", false],
  ["[9007199254740993]", "[9007199254740993]", true],
  ['"9007199254740993"', "9007199254740993", false],
  ["1124000727777607680000", "1.1240007277776077e+21", true],
  ["1124000727777607680001", "1.1240007277776077e+21", false],
  ["1e+16", "10000000000000000", true],
  ["1e+16", "10000000000000001", false],
  ['{"a": [1124000727777607680000]}', '{"a": [1.12400072777760768e21]}', true],
  ['{"a": 1, "b": [true, null]}', '{"b": [true, null], "a": 1}', true],
  ['{"a": 1}', '{"a": 1, "b": 2}', false],
  ['{"length": 0}', "[]", false],
  ['{"__proto__": {}}', '{"toString": {}}', false],
  ["true", "1", false],
  ["NaN", "null", false],
  ["Infinity", "Infinity", false],
  ["undefined", "null", false],
  ["[".repeat(200_000), "[]", false],
  [`"${'\\"'.repeat(300_000)}`, '""', false],
])("%.40s and %.40s", (left, right, same) => {
  expect(sameJson(left, right)).toBe(same);
});

test.each<[string, string, boolean]>([
  ["0.30000000000000004", "0.3", true],
  ["[1, 0.30000000000000004]", "[1.0, 0.3]", true],
  ["0.3001", "0.3", false],
  ["3.0000000000000004", "3", true],
  ["3.0001", "3", false],
  ["1000000.5", "1000000", false],
  ["0", "6.6e-34", false],
  ["6.6000001e-34", "6.6e-34", true],
  ["5e-17", "0", true],
  ["0.001", "0", false],
])("a returned %s for %s: %s", (left, right, same) => {
  expect(sameJson(left, right)).toBe(same);
});

test("a tolerance of returned and printed numbers", () => {
  expect(sameJson("[0.301]", "[0.3]", { absolute: 0.01 })).toBe(true);
  expect(sameJson("[0.32]", "[0.3]", { absolute: 0.01 })).toBe(false);
  expect(sameJson("101", "100", { relative: 0.05 })).toBe(true);
  expect(sameOutput("0.3001", "0.3", { tolerance: { relative: 0.01 } })).toBe(true);
  expect(sameOutput("0.30000001", "0.3", { tolerance: { relative: 0 } })).toBe(false);
});

test.each<[string, string, boolean, boolean]>([
  ["1 2 \n3\t\r\n\n", "1 2\n3", true, true],
  ["1  2", "1 2", false, true],
  [" 1 2", "1 2", false, true],
  ["1\n2", "1 2", false, true],
  ["\n1 2", "1 2", false, true],
  ["1 2\n\n3", "1 2\n3", false, true],
  ["0.3333333333333333", "0.333333", true, true],
  ["0.34", "0.333333", false, false],
  ["x = 0.50", "x = 0.5", true, true],
  ["1000001", "1000000", false, false],
  ["0", "6.6e-34", false, false],
  ["0", "1e-400", false, false],
  ["5.55e-17", "0.0", true, true],
  ["Yes", "YES", false, false],
  ["a\tb", "a b", false, true],
])("printed %j for %j: %s as lines, %s as tokens", (printed, expected, asLines, asTokens) => {
  expect(sameOutput(printed, expected)).toBe(asLines);
  expect(sameOutput(printed, expected, { whitespace: "tokens" })).toBe(asTokens);
});

test("bytes that are not UTF-8 are not the replacement character", () => {
  expect(sameOutput(outputText(Buffer.from([0x61, 0xff])), "a\ufffd")).toBe(false);
  expect(sameOutput(outputText(Buffer.from("a\ufffd")), "a\ufffd")).toBe(true);
});

test.each<[string, string, string | undefined]>([
  ["output after it", "```python\nx\n```\nIt prints:\n```\n6\n```", "x\n"],
  ["a shell command after it", "```python\nx\n```\n```bash\npython x.py\n```", "x\n"],
  ["the last of two", "```python\n1\n```\n```python\n2\n```", "2\n"],
  ["tildes", "~~~python\nx\n~~~", "x\n"],
  ["tildes with backticks inside", "~~~python\nx = '''\n```\n'''\n~~~", "x = '''\n```\n'''\n"],
  ["a longer fence", '````python\nx = """\n```\n"""\n````', 'x = """\n```\n"""\n'],
  ["a longer closing fence", "```python\nx\n`````  ", "x\n"],
  ["a shorter closing fence", "````python\nx\n```\ny", undefined],
  ["a list item", "1. Read:\n\n   ```python\n   if x:\n     y\n   ```", "if x:\n  y\n"],
  ["the line of a list item", "- ```python\n  if x:\n    y\n  ```", "if x:\n  y\n"],
  ["a nested list", "* a\n    * b\n\n        ```py\n        x\n        ```", "x\n"],
  ["tabs", "1.\tRead:\n\n\t```python\n\tif x:\n\t\ty\n\t```", "if x:\n\ty\n"],
  ["a quote", "> ```python\n> if x:\n>   y\n> ```", "if x:\n  y\n"],
  ["an info string", '```python title="a.py" {1,3}\nx\n```', "x\n"],
  ["an info string in braces", "```{.python .numberLines}\nx\n```", "x\n"],
  ["blanks before the language", "```   Python\nx\n```", "x\n"],
  ["a block that shows a fence", "    ```python\n    x\n    ```", undefined],
  ["code in a line", "```x``` and\n```python\ny\n```", "y\n"],
  ["carriage returns", "```python\r\nx\r\n```\r\n", "x\n"],
  ["an indented closing fence", "```python\nx\n   ```", "x\n"],
  ["a fence in a string", "```python\nx = '''\n    ```\n'''\n```", "x = '''\n    ```\n'''\n"],
  ["less indentation than the fence", "  ```python\n x\n    y\n  ```", "x\n  y\n"],
])("the program in a reply with %s", (_name, reply, code) => {
  expect(codeBlock(reply)?.code).toBe(code);
});

test("languages of blocks", () => {
  const reply = "```C++\n1\n```\n~~~ js\n2\n~~~\n```\n3\n```";
  expect(codeBlocks(reply).map(({ language }) => language)).toEqual(["c++", "js", ""]);
});

test.each([
  "> ".repeat(200_000),
  `1. ${" ".repeat(200_000)}\`\`\`\n${`${" ".repeat(1000)}x\n`.repeat(200)}`,
  "- ".repeat(200_000),
  "`".repeat(400_000),
  `${"```\n".repeat(100_000)}`,
  `${">".repeat(100_000)}\`\`\`\n${`${">".repeat(1000)}x\n`.repeat(200)}`,
])("linear time: the blocks of %.10s", (reply) => {
  const start = performance.now();
  codeBlock(reply);
  expect(performance.now() - start).toBeLessThan(2000);
});
