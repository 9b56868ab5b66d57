import { isDeepStrictEqual } from "node:util";
import { verlSections } from "../../schema/verl.ts";
import { layerOf, type Origin } from "../../tree/origin.ts";
import { valueAt } from "../../tree/value-at.ts";
import { verlOwnKeys, verlSharedKeys } from "./shared-keys.ts";

type Tree = Readonly<Record<string, unknown>>;

/**
 * A tree for a file that composes to the same values again. It leaves out what the user did not set in verl's sections,
 * which verl's own tree gives again, and common names whose default differs from verl's: in a file both would count as set.
 */
export function withoutVerlDefaults(tree: Tree, origins: ReadonlyMap<string, Origin>): Tree {
  const isSet = (key: string) => {
    const origin = origins.get(key);
    return origin !== undefined && origin.kind !== "synced" && layerOf(origin) > 0;
  };
  const sections: readonly string[] = [...verlSections, "data"];
  const own = [...origins.keys()].filter((key) => sections.includes(key.split(".")[0]!));
  const different = [...verlSharedKeys, ...verlOwnKeys]
    .filter(([native, common]) => !isSet(native) && !isDeepStrictEqual(valueAt(tree, native), valueAt(tree, common)))
    .map(([, common]) => common);
  return [...own, ...different].filter((key) => !isSet(key)).reduce((rest, key) => without(rest, key.split(".")), tree);
}

/** Sections that become empty are left out too. */
function without(tree: Tree, [name = "", ...rest]: string[]): Tree {
  const { [name]: found, ...others } = tree;
  if (rest.length === 0 || typeof found !== "object" || found === null) return others;
  const left = without(found as Tree, rest);
  return Object.keys(left).length === 0 ? others : { ...tree, [name]: left };
}
