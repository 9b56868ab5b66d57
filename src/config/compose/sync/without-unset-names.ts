import { isDeepStrictEqual } from "node:util";
import { layerOf, type Origin } from "../../tree/origin.ts";
import { valueAt } from "../../tree/value-at.ts";
import { verlNames, verlOwnKeys } from "./shared-keys.ts";

type Tree = Readonly<Record<string, unknown>>;

/**
 * A tree for a file that composes to the same values again. It leaves out verl's names that the user did not set, and their
 * common names too where each has a default of its own: in a file both would count as set, and one would replace the other.
 */
export function withoutUnsetNames(tree: Tree, origins: ReadonlyMap<string, Origin>): Tree {
  const isSet = (key: string) => {
    const origin = origins.get(key);
    return origin !== undefined && origin.kind !== "synced" && layerOf(origin) > 0;
  };
  const unset = [...verlNames, ...verlOwnKeys].flatMap(([native, common]) => {
    if (isSet(native)) return [];
    const areEqual = isDeepStrictEqual(valueAt(tree, native), valueAt(tree, common));
    return areEqual || isSet(common) ? [native] : [native, common];
  });
  return unset.reduce((rest, key) => without(rest, key.split(".")), tree);
}

function without(tree: Tree, [name = "", ...rest]: string[]): Tree {
  const { [name]: found, ...others } = tree;
  if (rest.length === 0 || typeof found !== "object" || found === null) return others;
  return { ...tree, [name]: without(found as Tree, rest) };
}
