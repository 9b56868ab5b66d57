import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { loadChat, shareWork } from "./chat.ts";
import type { ChatMessage } from "./messages.ts";
import { maxBytesPerToken, openTokenizer, TextTooLong } from "./tokenizer.ts";
import type { RenderOptions } from "./types.ts";

const families = ["chatml", "gemma", "llama", "qwen", "qwen3"];
const folder = (family: string) => fileURLToPath(new URL(`./fixtures/${family}`, import.meta.url));
const bytes = (text: string) => Buffer.byteLength(text);

describe.each(families)("the least number of tokens with the tokenizer of %s", (family) => {
  const tokenizer = openTokenizer(folder(family));
  test("is never more than the text has, and grows with its length", () => {
    const file = JSON.parse(readFileSync(`${folder(family)}/tokenizer.json`, "utf8")) as {
      model: { vocab: Record<string, number> };
    };
    const words = [...Object.keys(file.model.vocab), ...tokenizer.specials, " ", "\n", "\u212a", "e\u0302\u0301", "각"];
    const texts = fc.oneof(
      fc.string({ unit: "binary", maxLength: 80 }),
      fc.array(fc.constantFrom(...words), { maxLength: 60 }).map((parts) => parts.join("")),
      fc.tuple(fc.constantFrom(...words), fc.nat(60)).map(([word, times]) => word.repeat(times)),
    );
    fc.assert(
      fc.property(texts, (text) => {
        expect(tokenizer.leastTokens(text)).toBeLessThanOrEqual(tokenizer.encode(text).length);
      }),
      { seed: 12, numRuns: 300 },
    );
    expect(tokenizer.leastTokens("word ".repeat(1_000_000))).toBeGreaterThan(10_000);
  });
});

test("composing characters never shortens a text below a third", () => {
  for (let code = 0; code < 0x110000; code++) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const composed = String.fromCodePoint(code).normalize("NFC");
    const longest = Math.max(bytes(String.fromCodePoint(code)), bytes(composed.normalize("NFD")));
    if (longest > 3 * bytes(composed)) throw new Error(`U+${code.toString(16)}`);
  }
});

const bpe = { type: "BPE", vocab: { a: 0, "\u2581abc": 1 }, byte_fallback: true };
test.each([
  [{ model: bpe }, 6],
  [{ model: bpe, pre_tokenizer: { type: "ByteLevel" } }, 4],
  [{ model: bpe, normalizer: { type: "Sequence", normalizers: [{ type: "NFC" }, { type: "Prepend" }] } }, 18],
  [{ model: bpe, added_tokens: [{ content: "<|a token|>" }] }, 11],
  [{ model: { ...bpe, byte_fallback: false } }, undefined],
  [{ model: { ...bpe, type: "WordPiece" } }, undefined],
  [{ model: bpe, normalizer: { type: "Strip" } }, undefined],
  [{ model: bpe, normalizer: { type: "Replace", pattern: { String: "  " }, content: " " } }, undefined],
  [{ model: bpe, normalizer: { type: "Replace", pattern: { Regex: " +" }, content: " " } }, undefined],
  [{ model: bpe, pre_tokenizer: { type: "Whitespace" } }, undefined],
  [{ model: bpe, pre_tokenizer: { type: "Split", behavior: "Removed" } }, undefined],
  [{ model: bpe, added_tokens: [{ content: "<x>", rstrip: true }] }, undefined],
])("a token of %j stands for at most %j bytes", (file, most) => {
  expect(maxBytesPerToken(file)).toBe(most);
});

test("a text that is far too long is refused without encoding it", async () => {
  const chat = loadChat(folder("qwen"));
  const content = "word ".repeat(2_000_000);
  const started = performance.now();
  const refused = [
    chat.renderLater([{ role: "user", content }], { maxPromptTokens: 2048 }),
    chat.encodeLater(content, { maxPromptTokens: 2048 }),
  ];
  for (const each of refused) await expect(each).rejects.toThrow(TextTooLong);
  await expect(chat.encodeLater(content)).rejects.toThrow(/the limit is 8000000/);
  // Encoding it takes over a minute.
  expect(performance.now() - started).toBeLessThan(20_000);
});

test("encoding on another thread ends when its caller aborts, and the next request is answered", async () => {
  const chat = loadChat(folder("qwen"));
  const messages = [{ role: "user" as const, content: "some words ".repeat(300_000) }];
  const stop = new AbortController();
  const calls = [
    chat.renderLater(messages, { signal: stop.signal }),
    chat.encodeLater(messages[0]!.content, { signal: stop.signal }),
  ];
  setTimeout(() => stop.abort(new Error("gone")), 50);
  for (const call of calls) await expect(call).rejects.toThrow("gone");
  const text = "some words ".repeat(3000);
  expect(await chat.encodeLater(text)).toEqual(chat.encode(text));
});

test("shared work continues while a caller waits for it, and is aborted with the last caller", async () => {
  const share = shareWork<number>();
  const started: AbortSignal[] = [];
  let finish = (_: number) => {};
  const work = (signal: AbortSignal) => {
    started.push(signal);
    return new Promise<number>((resolve, reject) => {
      finish = resolve;
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  };
  const [first, second] = [new AbortController(), new AbortController()];
  const one = share("key", first.signal, work);
  const two = share("key", second.signal, work);
  first.abort(new Error("gone"));
  await expect(one).rejects.toThrow("gone");
  expect(started.map(({ aborted }) => aborted)).toEqual([false]);
  finish(7);
  expect(await two).toBe(7);
  const third = new AbortController();
  const last = share("key", third.signal, work);
  third.abort(new Error("gone too"));
  await expect(last).rejects.toThrow("gone too");
  expect(started.map(({ aborted }) => aborted)).toEqual([true, true]);
});

/** Compares tokens and text with those of transformers for the same files (worker/tests/make_chat_goldens.py). */

interface Goldens {
  /** BOS, EOS, padding. */
  ids: [number | null, number | null, number | null];
  encoded: { text: string; plain: number[]; special: number[] }[];
  decoded: { tokens: number[]; whole: string; skipped: string }[];
  rendered: ({ messages: ChatMessage[]; options: RenderOptions } & (
    | { text: string; tokens: number[] }
    | { error: string }
  ))[];
}

describe.each(["chatml", "qwen", "qwen3", "llama", "gemma"])("%s", (family) => {
  const folder = fileURLToPath(new URL(`./fixtures/${family}`, import.meta.url));
  const goldens: Goldens = JSON.parse(readFileSync(`${folder}/goldens.json`, "utf8"));
  const chat = loadChat(folder);

  test("the special tokens' ids", () => {
    expect([chat.bosId, chat.eosId, chat.padId]).toEqual(goldens.ids);
  });

  test.each(goldens.encoded)("encodes $text", ({ text, plain, special }) => {
    expect([...chat.encode(text)]).toEqual(plain);
    expect([...chat.encode(text, { addSpecial: true })]).toEqual(special);
  });

  test("decodes", () => {
    for (const { tokens, whole, skipped } of goldens.decoded) {
      expect(chat.decode(tokens)).toBe(whole);
      expect(chat.decode(tokens, { skipSpecial: true })).toBe(skipped);
    }
  });

  test("decodes token by token to the same text", () => {
    for (const { tokens, whole, skipped } of goldens.decoded) {
      for (const [skipSpecial, text] of [
        [false, whole],
        [true, skipped],
      ] as const) {
        const decoder = chat.incrementalDecoder({ skipSpecial });
        const pieces = tokens.map((token) => decoder.push(token));
        expect(pieces.join("") + decoder.end()).toBe(text);
      }
    }
  });

  test.each(goldens.rendered.map((golden, index) => ({ index, golden })))(
    "renders conversation $index",
    ({ golden }) => {
      const { messages, options } = golden;
      if ("error" in golden) {
        expect(() => chat.render(messages, options)).toThrow(golden.error);
      } else {
        expect(chat.renderText(messages, options)).toBe(golden.text);
        expect([...chat.render(messages, options)]).toEqual(golden.tokens);
      }
    },
  );
});
