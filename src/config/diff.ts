/** Two composed configurations compared. */
import { isDeepStrictEqual } from "node:util";
import type { ComposedConfig } from "./compose.ts";
import { originText } from "./origin.ts";
import { valueAt } from "./value-at.ts";

export interface Side {
  value: unknown;
  originText: string;
}

export interface Difference {
  key: string;
  /** Undefined where the tree has no such key. */
  left: Side | undefined;
  right: Side | undefined;
}

/** The keys whose values differ, in the order of the left tree, then those that only the right one has. */
export function diffConfigs(left: ComposedConfig, right: ComposedConfig): Difference[] {
  const keys = new Set([...left.origins.keys(), ...right.origins.keys()]);
  return [...keys].flatMap((key) => {
    const sides = [left, right].map((composed) => sideOf(composed, key)) as [Side | undefined, Side | undefined];
    return isDeepStrictEqual(sides[0]?.value, sides[1]?.value) ? [] : [{ key, left: sides[0], right: sides[1] }];
  });
}

function sideOf({ tree, origins }: ComposedConfig, key: string): Side | undefined {
  const origin = origins.get(key);
  return origin === undefined ? undefined : { value: valueAt(tree, key), originText: originText(origin) };
}
