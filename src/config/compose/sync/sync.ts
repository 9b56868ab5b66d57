/** Synchronizes the two names of each shared key, depending on the layer in which each was set. */
import { isDeepStrictEqual } from "node:util";
import { type Node, plain } from "../../tree/node.ts";
import { layerOf, type Origin } from "../../tree/origin.ts";
import type { ConfigWarning } from "../../warnings.ts";
import type { SharedKey } from "./shared-keys.ts";

/** A composed tree as the rules see it. Its references are resolved later. */
export interface SyncTree {
  /** The unresolved node, or undefined if the key does not exist. */
  node(path: string): Node | undefined;
  /** The value with references resolved if possible. */
  value(path: string): unknown;
  put(path: string, node: Node): void;
  /** The override that deleted the key by `~key=value`, which counts as setting it to null. */
  deleted(path: string): Origin | undefined;
}

export interface SyncOptions {
  /** Whether the backend's own names are deprecated, so setting one warns. */
  deprecated: boolean;
  warn: (warning: ConfigWarning) => void;
}

/** The layer in which a key was set: 0 for shipped defaults and for missing keys. */
export function layerAt(tree: SyncTree, path: string): number {
  return layerOf(originAt(tree, path));
}

export const isExplicit = (tree: SyncTree, path: string) => layerAt(tree, path) > 0;

/**
 * The name set in the later layer wins; within one layer, `rllm.*` wins. Among defaults `rllm.*` wins unless it is null.
 * The other name gets the same value. If this backend does not have its own name for the key, nothing changes, and
 * setting the common name produces a warning.
 */
export function syncSharedKey(tree: SyncTree, [native, rllm]: SharedKey, options: SyncOptions): void {
  const [ownLayer, commonLayer] = [layerAt(tree, native), layerAt(tree, rllm)];
  if (tree.node(native) === undefined) {
    if (commonLayer > 0) {
      const text = `${rllm} has no effect: ${native} is missing in the composed configuration`;
      options.warn({ category: "unsupported", paths: [native, rllm], text });
    }
    return;
  }
  if (commonLayer >= ownLayer && (commonLayer > 0 || (tree.value(rllm) ?? null) !== null)) {
    if (ownLayer > 0) warnOfNative(tree, native, rllm, commonLayer === ownLayer, options);
    copyKey(tree, native, rllm);
  } else if (ownLayer > 0) {
    warnOfNative(tree, native, rllm, false, options);
    copyKey(tree, rllm, native);
  }
}

/** Copies the value of the first key to the second, unless the second was set in the same or a later layer. */
export function forwardKey(tree: SyncTree, [from, to]: SharedKey, warn: SyncOptions["warn"]): void {
  const [fromLayer, toLayer] = [layerAt(tree, from), layerAt(tree, to)];
  if (fromLayer === 0 || (tree.value(from) ?? null) === null) return;
  if (toLayer < fromLayer) copyKey(tree, to, from, "forwarded");
  else if (toLayer === fromLayer && !isDeepStrictEqual(tree.value(from), tree.value(to))) {
    warn({ category: "conflict", paths: [from, to], text: `${from} and ${to} differ; ${to} wins` });
  }
}

/** Sets `to` to the value of `from`, or to a reference to it if `from` contains a reference. */
export function copyKey(tree: SyncTree, to: string, from: string, how: "synced" | "forwarded" = "synced"): void {
  const source = tree.node(from);
  const written = source === undefined ? "" : JSON.stringify(plain(source));
  // A reference back to `to` would be circular, so its value is copied.
  const value = written.includes("${") && !written.includes(to) ? `\${${from}}` : (tree.value(from) ?? null);
  derive(tree, to, value, from, how);
}

/** Sets a key to a value that follows from the key `from`. */
export function derive(
  tree: SyncTree,
  path: string,
  value: unknown,
  from: string,
  how: "synced" | "forwarded" = "synced",
): void {
  const setBy = originAt(tree, from);
  const origin: Origin = { kind: "synced", how, from, of: setBy.kind === "synced" ? setBy.of : setBy };
  tree.put(path, { kind: "value", origin, value });
}

/** The origin of a key, set or deleted. */
function originAt(tree: SyncTree, path: string): Origin {
  return tree.deleted(path) ?? tree.node(path)?.origin ?? { kind: "default" };
}

export function warnOfNative(
  tree: SyncTree,
  native: string,
  rllm: string,
  both: boolean,
  { deprecated, warn }: SyncOptions,
): void {
  if (both && !isDeepStrictEqual(tree.value(native) ?? null, tree.value(rllm) ?? null)) {
    warn({ category: "conflict", paths: [native, rllm], text: `${native} and ${rllm} differ; ${rllm} wins` });
    // The configuration saved with a run has both names, which is not worth a warning.
  } else if (deprecated && !(both && originAt(tree, native).kind === "file")) {
    const text = `${native} is the older name of ${rllm}; set ${rllm} instead`;
    warn({ category: "deprecated_native", paths: [native, rllm], text });
  }
}
