/** Reads the value at a dotted path; undefined if a section on the path is missing. */
import { own } from "../../own.ts";

export function valueAt(tree: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>(
      (section, name) =>
        typeof section === "object" && section !== null ? own(section as Record<string, unknown>, name) : undefined,
      tree,
    );
}
