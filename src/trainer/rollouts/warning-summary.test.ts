import { expect, test } from "vitest";
import { summarizeWarnings } from "./warning-summary.ts";

test("failed rollouts of one cause are two lines, not one each", () => {
  const lines: string[] = [];
  const warnings = summarizeWarnings((text) => lines.push(text), "see the episodes of step 3");
  for (let rollout = 0; rollout < 100; rollout++) warnings.add("agent: no", `rollout ${rollout} failed: no`);
  warnings.add("engine: full", "rollout 7 failed: full");
  warnings.end();
  expect(lines).toEqual([
    "rollout 0 failed: no",
    "rollout 7 failed: full",
    "99 more: agent: no (see the episodes of step 3)",
  ]);
});
