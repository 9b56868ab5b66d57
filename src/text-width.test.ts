import { expect, it } from "vitest";
import { cutText, textWidth } from "./text-width.ts";

it.each([
  ["loading", 7],
  ["日本語", 6],
  ["한국어", 6],
  ["e\u0301te\u0301", 3],
  ["🙂 ok", 5],
  ["👩‍👩‍👧", 2],
  ["—…é", 3],
])("%s takes %d columns", (text, width) => {
  expect(textWidth(text)).toBe(width);
});

it("text is cut by columns, with an ellipsis, and never beyond them", () => {
  expect(cutText("loading the model", 10)).toBe("loading t…");
  expect(cutText("loading", 7)).toBe("loading");
  expect(cutText("日本語日本語", 6)).toBe("日本…");
  expect(cutText("abc", 0)).toBe("");
  for (const text of ["日a本b語", "e\u0301🙂x日", "plain"]) {
    for (let width = 0; width < 8; width++) expect(textWidth(cutText(text, width))).toBeLessThanOrEqual(width);
  }
});
