/** The common representation of YAML files, scripts and flags before they are checked against the schema. */
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

interface ListNode {
  kind: "list";
  origin: Origin;
  items: Node[];
}

export interface ValueNode {
  kind: "value";
  origin: Origin;
  value: unknown;
  /** The original spelling of an unquoted number or boolean, for keys that accept text. */
  text?: string;
}

/** Converts a plain object to nodes. Members that are `undefined` are skipped. */
export function nodeFromObject(value: unknown, origin: Origin, depth = 0): Node {
  // Deeper than any configuration, so it is a cycle; the check rejects the value later.
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

/** Converts nodes to a plain object, list or value. */
export function plain(node: Node): unknown {
  if (node.kind === "value") return node.value;
  if (node.kind === "list") return node.items.map(plain);
  // Without a prototype, because a key may be named `__proto__`.
  const object: Record<string, unknown> = Object.create(null);
  for (const { name, node: child } of node.entries) object[name] = plain(child);
  return object;
}

/** The node at a dotted path, or undefined. List items are addressed by index. References are not followed. */
export function nodeAt(node: Node, path: readonly string[]): Node | undefined {
  return path.reduce<Node | undefined>((at, name) => (at === undefined ? undefined : childOf(at, name)), node);
}

/** A member of a section or an item of a list. */
export function childOf(node: Node, name: string): Node | undefined {
  if (node.kind === "map") return node.entries.find((entry) => entry.name === name)?.node;
  return node.kind === "list" && /^\d+$/.test(name) ? node.items[Number(name)] : undefined;
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
