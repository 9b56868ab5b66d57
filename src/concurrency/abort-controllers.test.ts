import { expect, test } from "vitest";
import { giveBackAbortController, takeAbortController } from "./abort-controllers.ts";

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
