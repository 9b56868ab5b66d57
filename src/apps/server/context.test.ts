import { expect, test } from "vitest";
import { RunError, UserError } from "../../base/errors.ts";
import { createFutureStore, type FutureResult } from "./context.ts";

const done: FutureResult = { kind: "json", body: { answer: 1 } };

test("a repeated id starts nothing, and a result can be collected repeatedly", async () => {
  const store = createFutureStore();
  let runs = 0;
  const work = async () => {
    runs++;
    return done;
  };
  store.start("a", work);
  store.start("a", work);
  expect(await store.collect("a", 1000)).toEqual(done);
  expect(await store.collect("a", 0)).toEqual(done);
  store.start("a", work);
  expect(runs).toBe(1);
});

test("polls wait, end with their time limit or their caller, and report unknown ids", async () => {
  const store = createFutureStore();
  let finish = (_: FutureResult): void => {};
  store.start("a", () => new Promise((resolve) => (finish = resolve)));
  expect(await store.collect("a", 1)).toBe("pending");
  expect(await store.collect("b", 1)).toBe("unknown");
  const caller = new AbortController();
  const left = store.collect("a", 60_000, caller.signal);
  caller.abort();
  expect(await left).toBe("pending");
  const waiting = [store.collect("a", 60_000), store.collect("a", 60_000)];
  finish(done);
  expect(await Promise.all(waiting)).toEqual([done, done]);
});

test("a failure has a category and the code of its error", async () => {
  const store = createFutureStore();
  const cases: [string, Error, object][] = [
    [
      "mistake",
      new UserError("wrong shape", { hint: "Look at it." }),
      {
        error: "wrong shape. Look at it.",
        category: "user",
        code: "user_error",
        message: "wrong shape",
        hint: "Look at it.",
      },
    ],
    [
      "engine",
      new RunError("the worker died", { code: "engine_down" }),
      { error: "the worker died", category: "server", code: "engine_down", message: "the worker died" },
    ],
    ["defect", new TypeError("x is undefined"), { error: "x is undefined", category: "server" }],
  ];
  for (const [id, error, failure] of cases) {
    store.start(id, async () => {
      throw error;
    });
    expect(await store.collect(id, 1000)).toEqual({ kind: "failure", body: failure });
  }
});

test("results are kept for a while, collected ones for a shorter time", async () => {
  let time = 0;
  const store = createFutureStore({ keepMs: 100, keepCollectedMs: 10, now: () => time });
  for (const id of ["collected", "left"]) store.start(id, async () => done);
  await store.collect("collected", 1000);
  await new Promise(setImmediate);
  time = 11;
  store.sweep();
  expect([store.has("collected"), store.has("left")]).toEqual([false, true]);
  time = 101;
  store.sweep();
  expect(store.size).toEqual({ pending: 0, settled: 0 });
});

test("cancelling aborts the work once", async () => {
  const store = createFutureStore();
  store.start(
    "a",
    (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(new UserError("cancelled")))),
  );
  await Promise.resolve();
  await Promise.resolve();
  store.cancel("a");
  expect(await store.collect("a", 1000)).toMatchObject({ body: { message: "cancelled" } });
  store.cancel("a");
  store.cancel("b");
  expect(store.size).toEqual({ pending: 0, settled: 1 });
});
