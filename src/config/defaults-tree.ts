/** The schema's defaults as a tree, beneath everything else. */
import { configKeys } from "./describe.ts";
import { type MapNode, nodeFromObject } from "./node.ts";
import { copyTree, putNode } from "./tree.ts";

let built: MapNode | undefined;

export function defaultsTree(): MapNode {
  built ??= build();
  return copyTree(built);
}

function build(): MapNode {
  const origin = { kind: "default" } as const;
  const tree: MapNode = { kind: "map", origin, entries: [] };
  for (const { key, default: value, about } of configKeys.values()) {
    putNode(tree, key, nodeFromObject(about.written ?? value, origin));
  }
  return tree;
}
