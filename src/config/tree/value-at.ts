/** Dotted paths of keys, such as `training.learning_rate`. */
import { own } from "../../own.ts";

export const leafOf = (key: string) => key.slice(key.lastIndexOf(".") + 1);
export const parentOf = (key: string) => key.slice(0, Math.max(0, key.lastIndexOf(".")));

/** The value at a path; undefined if a section on the path is missing. */
export function valueAt(tree: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>(
      (section, name) =>
        typeof section === "object" && section !== null ? own(section as Record<string, unknown>, name) : undefined,
      tree,
    );
}
