import { expect, test } from "vitest";
import { EngineDied } from "./backends/engine-died.ts";
import { HoneError, RunError, UserError } from "./errors.ts";

test("UserError and RunError are unrelated; errors of another copy of the package are recognized", async () => {
  // @ts-expect-error: the query makes it a separate module
  const other = (await import("./errors.ts?copy")) as typeof import("./errors.ts");
  expect(other.UserError).not.toBe(UserError);
  const kinds = (error: unknown) => [HoneError, UserError, RunError, EngineDied].map((kind) => error instanceof kind);
  expect(kinds(new UserError("a"))).toEqual([true, true, false, false]);
  expect(kinds(new other.UserError("a"))).toEqual([true, true, false, false]);
  expect(kinds(new RunError("a"))).toEqual([true, false, true, false]);
  expect(kinds(new other.RunError("a"))).toEqual([true, false, true, false]);
  expect(kinds(new EngineDied("a"))).toEqual([true, false, true, true]);
  for (const no of [new Error("a"), null, undefined, "a", {}]) expect(kinds(no)).toEqual([false, false, false, false]);
});

test("each error has a code and an exit code", () => {
  const described = [new UserError("a"), new RunError("a"), new EngineDied("a"), new UserError("a", { code: "b" })];
  expect(described.map(({ code, exitCode }) => [code, exitCode])).toEqual([
    ["user_error", 2],
    ["run_failed", 1],
    ["engine_died", 1],
    ["b", 2],
  ]);
});
