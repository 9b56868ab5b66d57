/** One shape for what a YAML file, a script and a flag say, before any of it is checked against the schema. */
import type { Origin } from "./origin.ts";

export type Node = MapNode | ListNode | ValueNode;

export interface MapNode {
  kind: "map";
  origin: Origin;
  entries: Entry[];
}

export interface Entry {
  name: string;
  origin: Origin;
  node: Node;
}

export interface ListNode {
  kind: "list";
  origin: Origin;
  items: Node[];
}

export interface ValueNode {
  kind: "value";
  origin: Origin;
  value: unknown;
  /** How an unquoted number or boolean was spelled, for keys that take text. */
  text?: string;
}

/** Something wrong in what the user wrote. `where`: `"gpu.yaml:3:5"` or the flag verbatim. */
export interface Mistake {
  where: string;
  message: string;
}

/** A plain object as nodes. `undefined` members are left out, as TypeScript's optional members allow. */
export function nodeFromObject(value: unknown, origin: Origin, depth = 0): Node {
  // Deeper than any configuration: a cycle, left as it is for the check to refuse.
  if (depth > 20) return { kind: "value", origin, value };
  if (Array.isArray(value)) {
    return { kind: "list", origin, items: value.map((item) => nodeFromObject(item, origin, depth + 1)) };
  }
  if (!isPlainObject(value)) return { kind: "value", origin, value };
  const entries = Object.entries(value)
    .filter(([, member]) => member !== undefined)
    .map(([name, member]) => ({ name, origin, node: nodeFromObject(member, origin, depth + 1) }));
  return { kind: "map", origin, entries };
}

/** Nodes as the plain object, list or value that they spell. */
export function plain(node: Node): unknown {
  if (node.kind === "value") return node.value;
  if (node.kind === "list") return node.items.map(plain);
  // No prototype: a key may be called `__proto__`.
  const object: Record<string, unknown> = Object.create(null);
  for (const { name, node: child } of node.entries) object[name] = plain(child);
  return object;
}

/** The node at a dotted path, or undefined. Items of lists go by their index. Looks up nothing through references. */
export function nodeAt(node: Node, path: readonly string[]): Node | undefined {
  return path.reduce<Node | undefined>((at, name) => (at === undefined ? undefined : childOf(at, name)), node);
}

/** A section's member or a list's item. */
export function childOf(node: Node, name: string): Node | undefined {
  if (node.kind === "map") return node.entries.find((entry) => entry.name === name)?.node;
  return node.kind === "list" && /^\d+$/.test(name) ? node.items[Number(name)] : undefined;
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
