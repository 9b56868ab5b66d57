import { describe, expect, test, vi } from "vitest";
import { createClosers } from "./closers.ts";
import { UserError } from "./errors.ts";

function opened(...failures: (Error | undefined)[]) {
  const closers = createClosers();
  const closed: unknown[] = [];
  for (const [index, failure] of failures.entries()) {
    closers.add(async (cause) => {
      closed.push(cause === undefined ? index : [index, cause]);
      if (failure) throw failure;
    });
  }
  return { closers, closed };
}

describe("closers", () => {
  test("close the last one first, and only once", async () => {
    const { closers, closed } = opened(undefined, undefined, undefined);
    await closers.close();
    await closers.close();
    expect(closed).toEqual([2, 1, 0]);
  });

  test("continue after a failure, and throw it", async () => {
    const failure = new UserError("the disk is full");
    const { closers, closed } = opened(undefined, failure, undefined);
    await expect(closers.close()).rejects.toBe(failure);
    expect(closed).toEqual([2, 1, 0]);
  });

  test("name each of several failures", async () => {
    const { closers } = opened(new Error("the port is taken"), undefined, new Error("the disk is full"));
    await expect(closers.close()).rejects.toThrow("closing failed: the disk is full; the port is taken");
  });

  test("throw the first of several failures for one reason", async () => {
    const first = new Error("the worker ended");
    await expect(opened(new Error("the worker ended"), first).closers.close()).rejects.toBe(first);
  });

  test("pass on why the opening failed, and report failures to close beside it", async () => {
    const warn = vi.spyOn(process, "emitWarning").mockReturnValue();
    const { closers, closed } = opened(undefined, new Error("the disk is full"), new Error("no model"));
    await expect(closers.abandon("no model")).rejects.toBe("no model");
    expect(closed).toEqual([
      [2, "no model"],
      [1, "no model"],
      [0, "no model"],
    ]);
    expect(warn.mock.calls).toEqual([["closing failed: the disk is full"]]);
    warn.mockRestore();
  });
});
