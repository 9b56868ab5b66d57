import { expect, test } from "vitest";
import { describeEvent } from "./describe-event.ts";

test("a warning that quotes a model cannot control a terminal or start a line of the log", () => {
  const text = "reward threw on \x1b[2J\u202eok\n2030-01-01 fake line\x07";
  for (const type of ["warning", "health"] as const) {
    const shown = describeEvent({ type, text } as Parameters<typeof describeEvent>[0])!;
    expect(shown).toBe(`${type}: reward threw on \\x1b[2J\\u202eok\n  2030-01-01 fake line\\x07`);
  }
});
