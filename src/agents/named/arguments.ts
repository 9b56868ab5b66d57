import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import type { NamedArguments } from "./parts.ts";

/** @throws UserError for an argument that is not read */
export function checkArguments(of: string, args: NamedArguments, known: readonly string[]): void {
  const unknown = Object.keys(args).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  const near = nearest(unknown, known, 1)[0];
  throw new UserError(`${of} does not have the argument ${unknown}`, {
    hint: near === undefined ? `its arguments: ${known.join(", ") || "none"}` : `did you mean ${near}?`,
  });
}
