import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { isThrownByHone, userFrames } from "./stack-frames.ts";

const hone = `    at step (${fileURLToPath(new URL("agents/multi-turn.ts", import.meta.url))}:3:1)`;
const user = "    at reward (/home/me/train.ts:7:3)";
const others = [
  "    at async Promise.all (index 0)",
  "    at run (node:internal/process:1:1)",
  "    at p (/home/me/node_modules/p/a.js:1:1)",
];
const stack = (...frames: string[]) => ["Error: no", ...frames].join("\n");

test("returns the frames of the user's files, or Hone's if there are none", () => {
  expect(userFrames(stack(hone, user, ...others))).toBe(user);
  expect(userFrames(stack(hone, ...others))).toBe(hone);
  expect([userFrames(stack(...others)), userFrames(undefined)]).toEqual(["", ""]);
  expect(userFrames(stack(...Array.from({ length: 9 }, () => user))).split("\n").length).toBe(8);
});

test("the error is attributed to the code that threw, not to its caller", () => {
  expect([stack(hone, user), stack(user, hone), stack(others[1]!, hone), undefined].map(isThrownByHone)).toEqual([
    true,
    false,
    true,
    false,
  ]);
});
