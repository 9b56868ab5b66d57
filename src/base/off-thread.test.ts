import { expect, test } from "vitest";
import { offThread } from "./off-thread.ts";

const module = new URL("./slow-graders.fixture.ts", import.meta.url);

test("answers from other threads, at the same time and again", async () => {
  const double = offThread<[number], number>(module, "double", { threads: 2 });
  expect(await Promise.all([1, 2, 3, 4, 5].map((value) => double([value])))).toEqual([2, 4, 6, 8, 10]);
  expect(await double([21])).toBe(42);
});

test("errors of the function reach the caller", async () => {
  await expect(offThread<[string], never>(module, "fail")(["no"])).rejects.toThrow("no");
  await expect(offThread(module, "missing")([])).rejects.toThrow("exports no function missing");
});

test("an endless loop, a thread that ends and an abort end the call; the next one works", async () => {
  const hang = offThread(module, "hang", { timeoutSeconds: 0.3, threads: 1 });
  await expect(hang([])).rejects.toThrow("hang took longer than 0.3 s");
  await expect(hang([], AbortSignal.timeout(50))).rejects.toThrow("timeout");
  await expect(offThread(module, "leave")([])).rejects.toThrow("ended with code 3");
});
