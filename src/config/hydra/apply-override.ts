/** Applies command-line overrides to a composed tree. */

import { isDeepStrictEqual } from "node:util";
import { nearest } from "../../nearest.ts";
import type { Mistake } from "../mistakes.ts";
import { childOf, type MapNode, type Node, nodeAt, plain } from "../tree/node.ts";
import { type Origin, oneLine } from "../tree/origin.ts";
import { pathsIn } from "../tree/tree.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { isMissing, merge, replaceAt, wrap } from "./merge.ts";
import type { Override } from "./parse-override.ts";
import { dereference } from "./resolve.ts";
import { type Element, elementToNode, isSweep } from "./value.ts";

/** A mistake in an override, collected with all others. */
class OverrideMistake extends Error {}

/** Returns the tree after the override; on a mistake, adds it to `mistakes` and returns the tree unchanged. */
export function applyOverride(tree: MapNode, override: Override, mistakes: Mistake[]): MapNode {
  try {
    const { kind, key, package: place } = override;
    if (place !== undefined) throw new OverrideMistake(`${key} is not a config group, so @${place} does not apply`);
    return kind === "delete" ? remove(tree, override) : set(tree, override);
  } catch (error) {
    if (!(error instanceof OverrideMistake)) throw error;
    mistakes.push({ where: oneLine(override.text), message: error.message });
    return tree;
  }
}

function set(tree: MapNode, { kind, key, value, text }: Override): MapNode {
  const path = key.split(".");
  const origin: Origin = { kind: "override", text };
  const node = elementToNode(value as Element, origin);
  const at = nodeAt(tree, path);
  if (kind === "add" && node.kind === "value" && isTaken(tree, path)) {
    const without = text.replace(/^\+/, "");
    throw new OverrideMistake(`${key} already exists; write ${without} to change it, or +${text} to add or change it`);
  }
  if (kind === "change") requireKnown(tree, path, node);
  requireIndex(tree, path);
  if (at === undefined || at.kind === "value" || node.kind === "value") return replaceAt(tree, path, node);
  if (at.kind !== node.kind) {
    const [found, given] = node.kind === "list" ? ["a section", "a list"] : ["a list", "a section"];
    throw new OverrideMistake(`${key} is ${found} (${positionText(at.origin)}) and cannot become ${given}`);
  }
  if (node.kind === "list") return replaceAt(tree, path, node);
  // Wrapped in a section, so the merge also works if the path goes through list items.
  const merged = merge(wrap(at, ["_"]) as MapNode, wrap(node, ["_"]) as MapNode);
  return replaceAt(tree, path, childOf(merged, "_"));
}

/** Whether `+key=` is refused. A key whose value is null or `???` may be added. */
function isTaken(tree: MapNode, path: readonly string[]): boolean {
  const node = nodeAt(tree, path);
  if (node === undefined || isMissing(node)) return false;
  const found = dereference(tree, path) ?? node;
  return !(found.kind === "value" && found.value === null);
}

/** Only `+key` and `++key` add keys, also in the value of a section. */
function requireKnown(tree: MapNode, path: readonly string[], node: Node): void {
  const at = nodeAt(tree, path);
  if (at === undefined) throw new OverrideMistake(`unknown key ${oneLine(path.join("."))}${keyHelp(tree, path)}`);
  if (at.kind === "map" && node.kind === "map") {
    for (const { name, node: child } of node.entries) {
      const inner = childOf(at, name);
      if (inner === undefined || (inner.kind === "map" && child.kind === "map"))
        requireKnown(tree, [...path, name], child);
    }
  }
}

function requireIndex(tree: MapNode, path: readonly string[]): void {
  for (const [length, index] of path.entries()) {
    const list = nodeAt(tree, path.slice(0, length));
    if (list?.kind === "list" && childOf(list, index) === undefined) {
      const name = path.slice(0, length).join(".");
      throw new OverrideMistake(
        `${name} is a list of length ${list.items.length}; item ${oneLine(index)} does not exist`,
      );
    }
  }
}

function remove(tree: MapNode, { key, value }: Override): MapNode {
  const path = key.split(".");
  const node = nodeAt(tree, path);
  if (node === undefined) throw new OverrideMistake(`unknown key ${oneLine(key)}${keyHelp(tree, path)}`);
  if (nodeAt(tree, path.slice(0, -1))?.kind === "list") {
    throw new OverrideMistake("an item of a list cannot be removed; set the list as a whole");
  }
  if (value !== undefined && !isSweep(value)) {
    const wanted = elementToNode(value, node.origin);
    const found = dereference(tree, path) ?? node;
    if (!isDeepStrictEqual(plain(wanted), plain(found))) {
      throw new OverrideMistake(`${key} is ${oneLine(spelled(found), 60)}, not ${oneLine(spelled(wanted), 60)}`);
    }
  }
  return replaceAt(tree, path, undefined);
}

const spelled = (node: Node) => JSON.stringify(plain(node));

/** Suggests keys for a mistyped one, and how to add a key. */
function keyHelp(tree: MapNode, path: readonly string[]): string {
  const key = path.join(".");
  const near = nearest(key, pathsIn(tree));
  if (near.length > 0) return `; did you mean ${near.join(" or ")}?`;
  let length = path.length - 1;
  while (length > 0 && nodeAt(tree, path.slice(0, length))?.kind !== "map") length--;
  const section = nodeAt(tree, path.slice(0, length));
  const names = section?.kind === "map" ? section.entries.map(({ name }) => name) : [];
  const holder = length === 0 ? "the configuration" : path.slice(0, length).join(".");
  return `; ${holder} has ${names.length === 0 ? "no keys" : oneLine(names.join(", "), 200)}. To add a new key, write +${key}=`;
}
