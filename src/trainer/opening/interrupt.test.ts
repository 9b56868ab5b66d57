import { afterEach, expect, test, vi } from "vitest";
import { listenForInterrupt } from "./interrupt.ts";

afterEach(() => vi.restoreAllMocks());

test.each([
  ["before the first step every Ctrl-C ends at once", () => false, [1]],
  ["later the first lets the step finish, and the second ends at once", () => true, [0, 1]],
  ["a measurement ends at the first", undefined, [1]],
])("%s", async (_, onFirst, expected) => {
  const exit = vi.spyOn(process, "exit").mockImplementation((() => {}) as never);
  let stops = 0;
  const interrupt = listenForInterrupt(onFirst, async () => void stops++);
  try {
    for (const count of expected) {
      process.emit("SIGINT");
      await new Promise(setImmediate);
      expect([stops, exit.mock.calls.length, interrupt.requested]).toEqual([count, count, true]);
    }
  } finally {
    interrupt.dispose();
  }
});
