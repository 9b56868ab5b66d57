import { expect, test } from "vitest";
import { giveBackAbortController, takeAbortController } from "./abort-controllers.ts";

test("a controller is used again once its work is over, and tells nobody of earlier work", () => {
  const first = takeAbortController();
  let told = 0;
  const listener = () => told++;
  first.signal.addEventListener("abort", listener, { once: true });
  first.signal.removeEventListener("abort", listener);
  giveBackAbortController(first);
  const second = takeAbortController();
  expect(second).toBe(first);
  expect(takeAbortController()).not.toBe(first);
  second.abort();
  expect(told).toBe(0);
});

test("one that was aborted, or that somebody still listens to, is not", () => {
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
