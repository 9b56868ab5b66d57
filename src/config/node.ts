/** One shape for what a YAML file, a script and a flag say, before any of it is checked against the schema. */
import type { Origin } from "./origin.ts";

export type Node =
  | { kind: "map"; origin: Origin; entries: { name: string; origin: Origin; node: Node }[] }
  /** `text`: how an unquoted number or boolean was spelled, for keys that take text. */
  | { kind: "value"; origin: Origin; value: unknown; text?: string };

/** Something wrong in what the user wrote. `where`: `"gpu.yaml:3:5"` or the flag verbatim. */
export interface Mistake {
  where: string;
  message: string;
}

/** A plain object as nodes. `undefined` members are left out, as TypeScript's optional members allow. */
export function nodeFromObject(value: unknown, origin: Origin, depth = 0): Node {
  // Deeper than any configuration: a cycle, left as it is for the check to refuse.
  if (!isPlainObject(value) || depth > 20) return { kind: "value", origin, value };
  const entries = Object.entries(value)
    .filter(([, member]) => member !== undefined)
    .map(([name, member]) => ({ name, origin, node: nodeFromObject(member, origin, depth + 1) }));
  return { kind: "map", origin, entries };
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
