/** Mistakes in the user's input, collected so that one error names them all. */
import { UserError } from "../errors.ts";
import { maskOverride } from "./secrets/without-secrets.ts";

/** `where`: `"gpu.yaml:3:5"` or the flag verbatim. */
export interface Mistake {
  where: string;
  message: string;
}

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
