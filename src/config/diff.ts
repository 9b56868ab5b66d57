/** Compares two composed configurations. */
import { isDeepStrictEqual } from "node:util";
import type { ComposedConfig } from "./compose.ts";
import { shownValue } from "./secrets.ts";
import { originText, valueAt } from "./tree.ts";

interface Side {
  /** The value with secrets masked. */
  value: unknown;
  originText: string;
}

export interface Difference {
  key: string;
  /** Undefined if the tree does not have the key. */
  left: Side | undefined;
  right: Side | undefined;
}

/** The keys whose values differ, in the order of the left tree, then the keys only in the right tree. */
export function diffConfigs(left: ComposedConfig, right: ComposedConfig): Difference[] {
  const keys = new Set([...left.origins.keys(), ...right.origins.keys()]);
  return [...keys].flatMap((key) => {
    const sides = [left, right].map((composed) => sideOf(composed, key)) as [Side | undefined, Side | undefined];
    return isDeepStrictEqual(valueAt(left.tree, key), valueAt(right.tree, key))
      ? []
      : [{ key, left: sides[0], right: sides[1] }];
  });
}

function sideOf({ tree, origins, masks }: ComposedConfig, key: string): Side | undefined {
  const origin = origins.get(key);
  return origin === undefined
    ? undefined
    : { value: shownValue(valueAt(tree, key), masks, key), originText: originText(origin) };
}
