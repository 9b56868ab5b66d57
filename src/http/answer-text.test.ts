import { expect, test } from "vitest";
import { answerText } from "./answer-text.ts";

test("an answer without end is refused, and no more of it is received", async () => {
  let sent = 0;
  let closed = false;
  async function* endless() {
    try {
      for (;;) {
        sent++;
        yield new Uint8Array(2 ** 20);
      }
    } finally {
      closed = true;
    }
  }
  await expect(answerText(endless(), "http://a")).rejects.toThrow("http://a answered with more than 64 MiB");
  expect([sent, closed]).toEqual([65, true]);
});

test("a character may be in two pieces, and no body is empty", async () => {
  const [first, second] = [Uint8Array.of(0xc3), Uint8Array.of(0xa9)];
  const pieces = (async function* () {
    yield* [first, second];
  })();
  expect(await answerText(pieces, "http://a")).toBe("é");
  expect(await answerText(null, "http://a")).toBe("");
});
