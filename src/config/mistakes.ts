/** Mistakes as the one error that a person reads. */
import { UserError } from "../errors.ts";
import { maskOverride } from "./mask-override.ts";
import type { Mistake } from "./node.ts";

const mostShown = 30;

/** One error that lists every mistake with its place. */
export function mistakesError(mistakes: readonly Mistake[], hint?: string): UserError {
  const lines = mistakes.map(({ where, message }) => `${maskOverride(where)}: ${message}`);
  const shown = lines.slice(0, mostShown);
  if (lines.length > mostShown) shown.push(`... and ${lines.length - mostShown} more`);
  const message =
    lines.length === 1 ? lines[0]! : `${lines.length} mistakes in the configuration:\n  ${shown.join("\n  ")}`;
  return new UserError(message, hint === undefined ? {} : { hint });
}
