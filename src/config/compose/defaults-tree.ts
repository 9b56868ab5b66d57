/** The schema's defaults as a tree, the lowest layer of the composition. */
import { configKeys } from "../describe.ts";
import { type MapNode, nodeFromObject } from "../tree/node.ts";
import { copyTree, putNode } from "../tree/tree.ts";

let cached: MapNode | undefined;

export function defaultsTree(): MapNode {
  cached ??= build();
  return copyTree(cached);
}

function build(): MapNode {
  const origin = { kind: "default" } as const;
  const tree: MapNode = { kind: "map", origin, entries: [] };
  for (const { key, default: value, about } of configKeys.values()) {
    putNode(tree, key, nodeFromObject(about.written ?? value, origin));
  }
  return tree;
}
