/** The value of a key by its dotted path; undefined where a section on the way is missing. */
import { own } from "../own.ts";

export function valueAt(tree: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>(
      (section, name) =>
        typeof section === "object" && section !== null ? own(section as Record<string, unknown>, name) : undefined,
      tree,
    );
}
