/** Compares tokens and text with those of transformers for the same files (worker/tests/make_chat_goldens.py). */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { loadChat } from "./chat.ts";
import type { ChatMessage } from "./messages.ts";
import type { RenderOptions } from "./types.ts";

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
  /** The library's byte-fallback decoder, Gemma's, drops a byte order mark. */
  const decodable = (text: string) => (family === "gemma" ? text.replaceAll("\uFEFF", "") : text);

  test("the special tokens' ids", () => {
    expect([chat.bosId, chat.eosId, chat.padId]).toEqual(goldens.ids);
  });

  test.each(goldens.encoded)("encodes $text", ({ text, plain, special }) => {
    expect([...chat.encode(text)]).toEqual(plain);
    expect([...chat.encode(text, { addSpecial: true })]).toEqual(special);
  });

  test("decodes", () => {
    for (const { tokens, whole, skipped } of goldens.decoded) {
      expect(chat.decode(tokens)).toBe(decodable(whole));
      expect(chat.decode(tokens, { skipSpecial: true })).toBe(decodable(skipped));
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
        expect(pieces.join("") + decoder.end()).toBe(decodable(text));
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
