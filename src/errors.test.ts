import { expect, test } from "vitest";
import { EngineDied } from "./backends/engine-died.ts";
import { RunError, UserError } from "./errors.ts";

test("errors of another copy of the package are recognized", async () => {
  // @ts-expect-error: the query makes it a module of its own
  const other = (await import("./errors.ts?copy")) as typeof import("./errors.ts");
  expect(other.UserError).not.toBe(UserError);
  const kinds = (error: unknown) => [UserError, RunError, EngineDied].map((kind) => error instanceof kind);
  expect(kinds(new other.UserError("a"))).toEqual([true, false, false]);
  expect(kinds(new other.RunError("a"))).toEqual([true, true, false]);
  expect(kinds(new EngineDied("a"))).toEqual([true, true, true]);
  expect(kinds(new RunError("a"))).toEqual([true, true, false]);
  for (const no of [new Error("a"), null, undefined, "a", {}]) expect(kinds(no)).toEqual([false, false, false]);
});
