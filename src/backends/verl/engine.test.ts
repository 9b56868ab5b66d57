import { expect, test } from "vitest";
import { driverDied } from "./engine.ts";

test("after the raylet's end, the error shows Ray's line about it and not the raylet's log", () => {
  const log = Array.from({ length: 20 }, () => "    [2026-11-23 02:27:03 I 1 1] (raylet) Object store memory is idle.");
  const lastLines = ["(raylet) Raylet is terminated. Termination is unexpected.", "    [state-dump]", ...log];
  const death = { code: 1, signal: null, residentBytes: null, memoryKills: null, lastLines, logFile: undefined };
  expect(driverDied(death).message).toBe(
    "the verl driver ended with exit code 1.\n  Its last output:\n    (raylet) Raylet is terminated. Termination is unexpected.",
  );
});
