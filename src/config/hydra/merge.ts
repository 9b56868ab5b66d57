/** Merges trees like OmegaConf: sections key by key, anything else as a whole. */
import { UserError } from "../../errors.ts";
import { childOf, type Entry, type MapNode, type Node } from "../tree/node.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { mayRefer } from "./parse-reference.ts";
import { dereference } from "./resolve.ts";

export const isMissing = (node: Node | undefined) => node?.kind === "value" && node.value === "???";

/**
 * Returns a new tree and does not change its arguments.
 * @throws UserError where a section meets a list
 */
export function merge(under: MapNode, over: MapNode): MapNode {
  return mergeMaps(under, over, under, []);
}

function mergeMaps(under: MapNode, over: MapNode, root: MapNode, path: readonly string[]): MapNode {
  const entries = new Map(under.entries.map((entry) => [entry.name, entry]));
  for (const entry of over.entries) {
    const below = entries.get(entry.name);
    if (below === undefined) entries.set(entry.name, entry);
    else if (!isMissing(entry.node)) {
      entries.set(entry.name, mergeEntry(below, entry, root, [...path, entry.name]));
    }
  }
  return { ...under, entries: [...entries.values()] };
}

function mergeEntry(below: Entry, entry: Entry, root: MapNode, path: readonly string[]): Entry {
  const { node } = entry;
  if (node.kind === "value") return entry;
  const target = section(below.node, root, path);
  if (target.kind === "value") return entry;
  if (target.kind !== node.kind) {
    const [found, given] = node.kind === "list" ? ["a section", "a list"] : ["a list", "a section"];
    throw new UserError(
      `${positionText(entry.origin)}: ${path.join(".")} is ${found} (${positionText(target.origin)}) and cannot become ${given}`,
    );
  }
  if (target.kind === "map" && node.kind === "map") return { ...below, node: mergeMaps(target, node, root, path) };
  return entry;
}

/** Follows a reference, because values are merged into the referenced section or list, not into the reference. */
function section(node: Node, root: MapNode, path: readonly string[]): Node {
  if (node.kind !== "value" || !mayRefer(node.value)) return node;
  const target = dereference(root, path);
  return target !== undefined && target.kind !== "value" ? target : node;
}

/** Creates a tree with a single node at a path. */
export function wrap(node: Node, path: readonly string[]): Node {
  return [...path]
    .reverse()
    .reduce<Node>(
      (inner, name) => ({ kind: "map", origin: node.origin, entries: [{ name, origin: node.origin, node: inner }] }),
      node,
    );
}

/**
 * Replaces the node at a path, or removes it if `node` is undefined, and creates missing sections on the path.
 * Does not merge, and does not check whether the key is known.
 */
export function replaceAt(tree: MapNode, path: readonly string[], node: Node | undefined): MapNode {
  const [name, ...rest] = path as [string, ...string[]];
  const child = childOf(tree, name);
  const put = rest.length === 0 ? node : replaceIn(child, rest, node);
  const entry = tree.entries.find((one) => one.name === name);
  if (put === undefined) return { ...tree, entries: tree.entries.filter((one) => one !== entry) };
  const made: Entry = { name, origin: rest.length === 0 ? put.origin : (entry?.origin ?? put.origin), node: put };
  return {
    ...tree,
    entries: entry === undefined ? [...tree.entries, made] : tree.entries.map((one) => (one === entry ? made : one)),
  };
}

function replaceIn(child: Node | undefined, path: readonly string[], node: Node | undefined): Node | undefined {
  const [name, ...rest] = path as [string, ...string[]];
  if (child?.kind === "list" && /^\d+$/.test(name) && child.items[Number(name)] !== undefined) {
    const items = child.items.map((item, index) => {
      if (index !== Number(name)) return item;
      return (rest.length === 0 ? node : replaceIn(item, rest, node)) ?? item;
    });
    return { ...child, items };
  }
  if (child?.kind === "map") return replaceAt(child, path, node);
  if (node === undefined) return child;
  return replaceAt({ kind: "map", origin: node.origin, entries: [] }, path, node);
}
