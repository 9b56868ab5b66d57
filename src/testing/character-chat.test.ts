import fc from "fast-check";
import { expect, test } from "vitest";
import { characterChat } from "./character-chat.ts";

const conversation = [
  { role: "system", content: "be brief" },
  { role: "user", content: "grüße 🎉" },
] as const;

test("each mark and each character of a conversation is one token", () => {
  const chat = characterChat();
  expect(chat.renderText(conversation)).toBe("<|system|>be brief<|end|><|user|>grüße 🎉<|end|><|assistant|>");
  const tokens = chat.render(conversation);
  expect(tokens.length).toBe(8 + 7 + 5);
  expect(chat.decode(tokens)).toBe(chat.renderText(conversation));
  expect(chat.decode(tokens, { skipSpecial: true })).toBe("be briefgrüße 🎉");
  expect(chat.messagesOf(tokens)).toEqual(conversation);
  expect(chat.render(conversation, { addGenerationPrompt: false })).toEqual(tokens.slice(0, -1));
});

test("decoding restores any text", () => {
  const chat = characterChat();
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), (text) => {
      const tokens = chat.encode(text);
      expect(chat.decode(tokens)).toBe(text);
      const decoder = chat.incrementalDecoder();
      expect([...tokens].map((token) => decoder.push(token)).join("") + decoder.end()).toBe(text);
      expect(tokens.every((id) => id >= 0 && id < chat.vocabularySize)).toBe(true);
    }),
  );
});

test("a list may contain whole replies, which are one token, and U+FFFD for all other characters", () => {
  const chat = characterChat(["a", "\uFFFD", "a(b)", "yes"]);
  expect([...chat.encode("aa(b)yes!<|end|>")]).toEqual([5, 7, 8, 6, 0]);
  expect(chat.decode([8, 7])).toBe("yesa(b)");
});

test("an alphabet makes the vocabulary small; other characters are refused", () => {
  const chat = characterChat("abca");
  expect(chat.vocabularySize).toBe(8);
  expect([...chat.encode("cab<|end|>")]).toEqual([7, 5, 6, 0]);
  expect(chat.decode([7, 99, -1, 5])).toBe("ca");
  expect(() => chat.encode("abd")).toThrow('the character "d" is not in the alphabet "abca"');
});
