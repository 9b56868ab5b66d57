/** Brings the two names of each shared key to one value, by where each was set. */
import { isDeepStrictEqual } from "node:util";
import { type Node, plain } from "../node.ts";
import { layerOf, type Origin } from "../origin.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { SharedKey } from "./shared-keys.ts";

/** What the rules see of a composed tree. References in it are resolved after them. */
export interface SyncTree {
  /** As it was written. Undefined where there is no such key. */
  node(path: string): Node | undefined;
  /** With references resolved, as far as they can be. */
  value(path: string): unknown;
  put(path: string, node: Node): void;
  /** Whether an override deleted the key by `~key=value`, which counts as setting it to null. */
  deleted(path: string): Origin | undefined;
}

export interface SyncOptions {
  /** Whether setting a key by the backend's own name there is worth a warning. */
  deprecateNative: (origin: Origin) => boolean;
  warn: (warning: ConfigWarning) => void;
}

/** The layer a key was set in: 0 for what ships. A key that is not there was set nowhere. */
export function layerAt(tree: SyncTree, path: string): number {
  const origin = tree.deleted(path) ?? tree.node(path)?.origin;
  return origin === undefined ? 0 : layerOf(origin);
}

export const isExplicit = (tree: SyncTree, path: string) => layerAt(tree, path) > 0;

/**
 * The name set in the later layer wins, `rllm.*` within one layer. Among defaults `rllm.*` wins unless it is null.
 * The other name gets its value. Where this backend does not have its own name, nothing happens, and who set the
 * common one is told.
 */
export function syncSharedKey(tree: SyncTree, [native, rllm]: SharedKey, options: SyncOptions): void {
  const [ownLayer, commonLayer] = [layerAt(tree, native), layerAt(tree, rllm)];
  if (tree.node(native) === undefined) {
    if (commonLayer > 0) {
      const text = `${rllm} has no effect: what this configuration composes has no ${native}`;
      options.warn({ category: "unsupported", paths: [native, rllm], text });
    }
    return;
  }
  if (commonLayer >= ownLayer && (commonLayer > 0 || (tree.value(rllm) ?? null) !== null)) {
    if (ownLayer > 0) warnOfNative(tree, native, rllm, commonLayer === ownLayer, options);
    point(tree, native, rllm);
  } else if (ownLayer > 0) {
    warnOfNative(tree, native, rllm, false, options);
    point(tree, rllm, native);
  }
}

/** The first name of each pair gives the second its value, unless the second was set in the same or a later layer. */
export function forwardKey(tree: SyncTree, [from, to]: SharedKey, { warn }: SyncOptions): void {
  const [fromLayer, toLayer] = [layerAt(tree, from), layerAt(tree, to)];
  if (fromLayer === 0 || (tree.value(from) ?? null) === null) return;
  if (toLayer < fromLayer) point(tree, to, from, "forwarded");
  else if (toLayer === fromLayer && !isDeepStrictEqual(tree.value(from), tree.value(to))) {
    warn({ category: "conflict", paths: [from, to], text: `${from} and ${to} differ; ${to} wins` });
  }
}

/** Gives `to` what `from` says, by value where it is one, else by a reference to it. */
export function point(tree: SyncTree, to: string, from: string, how: "synced" | "forwarded" = "synced"): void {
  const source = tree.node(from);
  const said = tree.deleted(from) ?? source?.origin ?? { kind: "default" };
  const origin: Origin = { kind: "synced", how, from, of: said.kind === "synced" ? said.of : said };
  const written = source === undefined ? "" : JSON.stringify(plain(source));
  // What refers back to `to` can only be taken by value.
  const value = written.includes("${") && !written.includes(to) ? `\${${from}}` : (tree.value(from) ?? null);
  tree.put(to, { kind: "value", origin, value });
}

export function warnOfNative(
  tree: SyncTree,
  native: string,
  rllm: string,
  both: boolean,
  { deprecateNative, warn }: SyncOptions,
): void {
  const origin = tree.deleted(native) ?? tree.node(native)?.origin ?? { kind: "default" };
  if (both && !isDeepStrictEqual(tree.value(native) ?? null, tree.value(rllm) ?? null)) {
    warn({ category: "conflict", paths: [native, rllm], text: `${native} and ${rllm} differ; ${rllm} wins` });
    // The configuration that a run keeps has both names.
  } else if (deprecateNative(origin) && !(both && origin.kind === "file")) {
    const text = `${native} is the older name of ${rllm}; set ${rllm} instead`;
    warn({ category: "deprecated_native", paths: [native, rllm], text });
  }
}
