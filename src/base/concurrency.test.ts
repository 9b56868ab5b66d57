import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import {
  AsyncQueue,
  giveBackAbortController,
  Notifier,
  Semaphore,
  takeAbortController,
  withinTime,
} from "./concurrency.ts";

describe("AsyncQueue", () => {
  test("a reader gets every value in order, before and after it waits, and then the end", async () => {
    const queue = new AsyncQueue<number>();
    queue.push(1);
    queue.push(2);
    const read: number[] = [];
    const reader = (async () => {
      for await (const value of queue) read.push(value);
    })();
    await sleep(0);
    queue.push(3);
    queue.end();
    queue.fail(new Error("too late"));
    await reader;
    expect(read).toEqual([1, 2, 3]);
    expect(await queue.take()).toBeUndefined();
  });

  test("a failure comes after the values before it", async () => {
    const queue = new AsyncQueue<number>();
    queue.push(1);
    queue.fail(new Error("the disk is full"));
    queue.end();
    expect(await queue.take()).toBe(1);
    await expect(queue.take()).rejects.toThrow("the disk is full");
    await expect(queue.take()).rejects.toThrow("the disk is full");
  });

  test("takeAll empties the queue", () => {
    const queue = new AsyncQueue<string>();
    for (const value of ["a", "b"]) queue.push(value);
    expect([queue.size, queue.takeAll(), queue.size, queue.takeAll()]).toEqual([2, ["a", "b"], 0, []]);
  });
});

describe("Notifier", () => {
  test("all waiting callers resume at a change, at the end of their time, or when aborted", async () => {
    const changed = new Notifier();
    const stop = new AbortController();
    const waits = [changed.wait(), changed.wait({ ms: 60_000 }), changed.wait({ signal: stop.signal })];
    changed.notify();
    await Promise.all(waits);
    await changed.wait({ ms: 1 });
    const aborted = changed.wait({ signal: stop.signal });
    stop.abort();
    await aborted;
    await changed.wait({ signal: stop.signal });
  });
});

describe("Semaphore", () => {
  test("runs at most the given number at once, in order", async () => {
    const semaphore = new Semaphore(2);
    const started: number[] = [];
    let [running, most] = [0, 0];
    await Promise.all(
      [0, 1, 2, 3, 4].map((index) =>
        semaphore.run(async () => {
          started.push(index);
          most = Math.max(most, ++running);
          await sleep(1);
          running--;
        }),
      ),
    );
    expect([started, most, semaphore.free]).toEqual([[0, 1, 2, 3, 4], 2, 2]);
  });

  test("a failure frees the place", async () => {
    const semaphore = new Semaphore(1);
    await expect(semaphore.run(() => Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(await semaphore.run(async () => "next")).toBe("next");
  });

  test("a caller whose signal aborts leaves the queue at once and never starts", async () => {
    const semaphore = new Semaphore(1);
    await semaphore.take();
    const stop = new AbortController();
    let ran = false;
    const aborted = semaphore.run(async () => {
      ran = true;
    }, stop.signal);
    const next = semaphore.run(async () => "next");
    stop.abort(new Error("stopped"));
    await expect(aborted).rejects.toThrow("stopped");
    await expect(semaphore.take(stop.signal)).rejects.toThrow("stopped");
    semaphore.give();
    expect([await next, ran, semaphore.free]).toEqual(["next", false, 1]);
  });

  test.each([0, -1, Number.NaN])("refuses a concurrency of %s", (count) => {
    expect(() => new Semaphore(count)).toThrow(`the concurrency is ${count}, but must be at least 1`);
  });
});

test("a pattern that backtracks without end is interrupted, and later work runs", () => {
  expect(withinTime(50, () => /^(a+)+$/.test(`${"a".repeat(60)}b`))).toBeUndefined();
  expect(withinTime(1000, () => /^(a+)+$/.test("aa"))).toBe(true);
  expect(() =>
    withinTime(1000, () => {
      throw new RangeError("own");
    }),
  ).toThrow(new RangeError("own"));
});

test("a controller is reused after its work is over, without listeners of earlier work", () => {
  const first = takeAbortController();
  let calls = 0;
  const listener = () => calls++;
  first.signal.addEventListener("abort", listener, { once: true });
  first.signal.removeEventListener("abort", listener);
  giveBackAbortController(first);
  const second = takeAbortController();
  expect(second).toBe(first);
  expect(takeAbortController()).not.toBe(first);
  second.abort();
  expect(calls).toBe(0);
});

test("a controller that was aborted, or that still has listeners, is not reused", () => {
  const aborted = takeAbortController();
  aborted.abort(new Error("gone"));
  giveBackAbortController(aborted);
  const heard = takeAbortController();
  heard.signal.addEventListener("abort", () => {});
  giveBackAbortController(heard);
  const next = [takeAbortController(), takeAbortController()];
  expect(next).not.toContain(aborted);
  expect(next).not.toContain(heard);
  expect(next.every(({ signal }) => !signal.aborted)).toBe(true);
});
