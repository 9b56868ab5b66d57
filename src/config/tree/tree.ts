/** Reads and writes a composed tree by dotted paths. */
import { type Entry, type MapNode, type Node, nodeAt } from "./node.ts";
import { layerOf, type Origin } from "./origin.ts";

export interface Leaf {
  /** `"rllm.trainer.total_epochs"` */
  path: string;
  node: Node;
  /** The origin of the line that sets it. */
  origin: Origin;
}

export function nodeOf(tree: MapNode, path: string): Node | undefined {
  return nodeAt(tree, path.split("."));
}

/** Puts a node at a path and creates missing sections; a value in place of a section is replaced. */
export function putNode(tree: MapNode, path: string, node: Node): void {
  const names = path.split(".");
  const last = names.pop() ?? "";
  let section = tree;
  for (const name of names) {
    const found = section.entries.find((entry) => entry.name === name);
    if (found?.node.kind === "map") {
      section = found.node;
      continue;
    }
    const inner: MapNode = { kind: "map", origin: node.origin, entries: [] };
    putEntry(section, { name, origin: node.origin, node: inner });
    section = inner;
  }
  putEntry(section, { name: last, origin: node.origin, node });
}

function putEntry(section: MapNode, entry: Entry): void {
  const index = section.entries.findIndex(({ name }) => name === entry.name);
  if (index < 0) section.entries.push(entry);
  else section.entries[index] = entry;
}

/** Every key and section as a dotted path. */
export function pathsIn(node: Node, prefix = ""): string[] {
  if (node.kind !== "map") return [];
  return node.entries.flatMap(({ name, node: child }) => [`${prefix}${name}`, ...pathsIn(child, `${prefix}${name}.`)]);
}

/** Every value, list, empty section, and section that `isWhole` marks as a single value. */
export function leavesOf(node: Node, isWhole: (path: string) => boolean, path = ""): Leaf[] {
  if (node.kind !== "map" || node.entries.length === 0 || isWhole(path)) {
    return path === "" ? [] : [{ path, node, origin: latestOrigin(node) }];
  }
  return node.entries.flatMap(({ name, node: child }) =>
    leavesOf(child, isWhole, path === "" ? name : `${path}.${name}`),
  );
}

/** A section that is a single value was set where its latest member was set. */
function latestOrigin({ origin, ...node }: Node): Origin {
  if (node.kind !== "map") return origin;
  return node.entries
    .map((entry) => latestOrigin(entry.node))
    .reduce((latest, one) => (layerOf(one) > layerOf(latest) ? one : latest), origin);
}

/** A copy whose sections may be changed. */
export function copyTree(tree: MapNode): MapNode {
  return {
    ...tree,
    entries: tree.entries.map((entry) =>
      entry.node.kind === "map" ? { ...entry, node: copyTree(entry.node) } : { ...entry },
    ),
  };
}
