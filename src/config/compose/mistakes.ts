/** Combines all mistakes into a single error. */
import { UserError } from "../../errors.ts";
import { maskOverride } from "../secrets/mask-override.ts";
import type { Mistake } from "../tree/node.ts";

const maxShown = 30;

/** An error that lists every mistake with its location. */
export function mistakesError(mistakes: readonly Mistake[], hint?: string): UserError {
  const lines = mistakes.map(({ where, message }) => `${maskOverride(where)}: ${message}`);
  const shown = lines.slice(0, maxShown);
  if (lines.length > maxShown) shown.push(`... and ${lines.length - maxShown} more`);
  const message =
    lines.length === 1 ? lines[0]! : `${lines.length} mistakes in the configuration:\n  ${shown.join("\n  ")}`;
  return new UserError(message, hint === undefined ? {} : { hint });
}
