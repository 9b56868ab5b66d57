import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { testFolder } from "../temporary-folder.fixture.ts";
import { openTokenizer } from "./tokenizer.ts";
import { endlessRegex } from "./tokenizer-file.ts";

interface Recorded {
  name: string;
  file: Record<string, unknown>;
  /** Text (null: only decoded), ids, decoded text. */
  rows: [string | null, number[], string][];
}

const recorded = JSON.parse(readFileSync(new URL("./fixtures/tokenizers.json", import.meta.url), "utf8")) as Recorded[];

function open(file: object, beside: Record<string, unknown> = {}) {
  const folder = testFolder("tokenizer");
  for (const [name, content] of Object.entries({ "tokenizer.json": file, ...beside })) {
    writeFileSync(join(folder, name), JSON.stringify(content));
  }
  return openTokenizer(folder);
}

test.each(recorded)("$name is that of the reference", ({ file, rows }) => {
  const tokenizer = open(file);
  for (const [text, ids, decoded] of rows) {
    if (text !== null) expect([...tokenizer.encode(text)], JSON.stringify(text)).toEqual(ids);
    expect(tokenizer.decode(ids), JSON.stringify(text)).toBe(decoded);
  }
});

const steps = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
const small = { ...steps, added_tokens: [], model: { type: "BPE", vocab: { a: 0, b: 1 }, merges: [] } };

test("tokens of older files are added", () => {
  const tokenizer = open(small, {
    "added_tokens.json": { "<x>": 2 },
    "special_tokens_map.json": { bos_token: "<x>", eos_token: { content: "b" } },
    "tokenizer_config.json": { eos_token: "a" },
  });
  expect([...tokenizer.encode("a<x>b")]).toEqual([0, 2, 1]);
  expect(tokenizer.config).toMatchObject({ bos_token: "<x>", eos_token: "b" });
  const newer = open(small, {
    "special_tokens_map.json": { bos_token: "<x>" },
    "tokenizer_config.json": { added_tokens_decoder: { "7": { content: "<y>", special: true } } },
  });
  expect([...newer.encode("<y>a")]).toEqual([7, 0]);
  expect(newer.config.bos_token).toBeUndefined();
});

const doubling = Array.from({ length: 30 }, () => ({ type: "Replace", pattern: { String: "a" }, content: "aa" }));
const splitAt = (regex: string) => ({ type: "Split", pattern: { Regex: regex }, behavior: "Isolated", invert: false });

test.each<[object, string]>([
  [{ model: { ...small.model, merges: [null] } }, "tokenizer.json: model.merges[0] is null, not two tokens"],
  [{ model: { ...small.model, vocab: { a: -1 } } }, 'model.vocab["a"] is -1'],
  [{ model: { ...small.model, vocab: { a: 4e9 } } }, 'model.vocab["a"]'],
  [{ added_tokens: [{ id: 3 }] }, "added_tokens[0] is not a token"],
  [
    { normalizer: { type: "Sequence", normalizers: doubling } },
    "normalizer can make a text over a million times longer",
  ],
  [{ pre_tokenizer: splitAt("(a+)+$") }, "pre_tokenizer.pattern.Regex repeats a group"],
  [
    {
      normalizer: { type: "Sequence", normalizers: [{ type: "Replace", pattern: { Regex: "(a|a)*b" }, content: "" }] },
    },
    "normalizer.normalizers[0].pattern.Regex repeats a group",
  ],
  [{ pre_tokenizer: splitAt("a*a*a*a*a*b") }, "too many unlimited repetitions"],
])("%j is refused with the file and the key", (part, message) => {
  expect(() => open({ ...small, ...part })).toThrow(message);
});

test.each([
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?:\\P{N}|$))",
  " ?[^(\\s|[.,!?…。，、।۔،])]+",
])("the pattern %j of a published tokenizer is accepted", (pattern) => {
  expect(endlessRegex(pattern)).toBeUndefined();
});
