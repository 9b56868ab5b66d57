/** Rules about keys that depend on each other, mostly the two names of one setting. One pass applies those of a backend. */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../base/errors.ts";
import { select } from "./hydra/resolve.ts";
import { configKeys } from "./schema.ts";
import { type ConfigWarning, layerOf, type MapNode, type Node, nodeOf, type Origin, plain, putNode } from "./tree.ts";

/** The two names of a setting: the backend's own, and `rllm.*`, which scripts for every backend use. */
export type KeyPair = readonly [native: string, common: string];

/** A composed tree as the rules see it. Its references are resolved later. */
export interface SyncTree {
  /** The unresolved node, or undefined if the key does not exist. */
  node(path: string): Node | undefined;
  /** The value with references resolved if possible. */
  value(path: string): unknown;
  put(path: string, node: Node): void;
  /** The override that deleted the key by `~key=value`, which counts as setting it to null. */
  deleted(path: string): Origin | undefined;
  warn(category: ConfigWarning["category"], paths: readonly string[], text: string): void;
}

export type SyncRule = (tree: SyncTree) => void;

/**
 * Changes `tree`. References are kept: a key whose value comes from a key with a reference gets a reference to that key.
 *
 * @param deleted the keys deleted by overrides `~key=value`, with the origins of those overrides
 * @returns the warnings, in the order of the rules
 */
export function applyRules(
  tree: MapNode,
  rules: readonly SyncRule[],
  deleted: ReadonlyMap<string, Origin>,
  resolvers: Parameters<typeof select>[2] = {},
): ConfigWarning[] {
  const warnings: ConfigWarning[] = [];
  const view: SyncTree = {
    node: (path) => nodeOf(tree, path),
    value: (path) => {
      const node = nodeOf(tree, path);
      if (node === undefined) return undefined;
      if (!refers(node)) return plain(node);
      try {
        const found = select(tree, path, resolvers);
        return found === undefined ? undefined : plain(found);
      } catch (error) {
        // The error is reported when the whole tree is resolved.
        if (error instanceof UserError) return undefined;
        throw error;
      }
    },
    put: (path, node) => putNode(tree, path, node),
    deleted: (path) => deleted.get(path),
    warn: (category, paths, text) => warnings.push({ category, paths, text }),
  };
  for (const rule of rules) rule(view);
  return warnings;
}

function refers(node: Node): boolean {
  if (node.kind === "value") return typeof node.value === "string" && node.value.includes("${");
  return node.kind === "list" ? node.items.some(refers) : node.entries.some(({ node: child }) => refers(child));
}

/** The layer in which a key was set: 0 for shipped defaults and for missing keys. */
export function layerAt(tree: SyncTree, path: string): number {
  return layerOf(originAt(tree, path));
}

export const isExplicit = (tree: SyncTree, path: string) => layerAt(tree, path) > 0;

/**
 * The name set in the later layer wins; within one layer, the common one wins. Among defaults the common one wins unless it
 * is null. The other name gets the same value. If this backend does not have its own name for the key, nothing changes, and
 * setting the common name produces a warning.
 *
 * @param isOlder whether the backend's own name is deprecated, so setting it warns
 */
export function sameValue([native, common]: KeyPair, isOlder = false): SyncRule {
  return (tree) => {
    const [ownLayer, commonLayer] = [layerAt(tree, native), layerAt(tree, common)];
    if (tree.node(native) === undefined) {
      if (commonLayer > 0) {
        const text = `${common} has no effect: ${native} is missing in the composed configuration`;
        tree.warn("unsupported", [native, common], text);
      }
      return;
    }
    if (commonLayer >= ownLayer && (commonLayer > 0 || (tree.value(common) ?? null) !== null)) {
      if (ownLayer > 0) warnOfNative(tree, [native, common], { isOlder, both: commonLayer === ownLayer });
      copyKey(tree, native, common);
    } else if (ownLayer > 0) {
      warnOfNative(tree, [native, common], { isOlder });
      copyKey(tree, common, native);
    }
  };
}

/** Copies the value of the first key to the second, unless the second was set in the same or a later layer. */
export function forwarded([from, to]: KeyPair): SyncRule {
  return (tree) => {
    const [fromLayer, toLayer] = [layerAt(tree, from), layerAt(tree, to)];
    if (fromLayer === 0 || (tree.value(from) ?? null) === null) return;
    if (toLayer < fromLayer) copyKey(tree, to, from, "forwarded");
    else if (toLayer === fromLayer) warnOfConflict(tree, [from, to]);
  };
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

/** @returns whether the two names have different values */
function warnOfConflict(tree: SyncTree, [native, common]: KeyPair): boolean {
  if (isDeepStrictEqual(tree.value(native) ?? null, tree.value(common) ?? null)) return false;
  tree.warn("conflict", [native, common], `${native} and ${common} differ; ${common} wins`);
  return true;
}

/** Warns that the backend's own name was set. `both`: the common name was set in the same layer. */
export function warnOfNative(tree: SyncTree, pair: KeyPair, { isOlder = true, both = false } = {}): void {
  if ((both && warnOfConflict(tree, pair)) || !isOlder) return;
  const [native, common] = pair;
  // The configuration saved with a run has both names, which is not worth a warning.
  if (both && originAt(tree, native).kind === "file") return;
  tree.warn("deprecated_native", pair, `${native} is the older name of ${common}; set ${common} instead`);
}

// Keys with two names on every backend, and other keys that set each other.

/** Sizes come first, because other defaults refer to them. */
const sizes = ["train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length"].map(
  (name): KeyPair => [`data.${name}`, `rllm.data.${name}`],
);

const sampling = ["train", "val"].flatMap((when) =>
  ["temperature", "top_p", "top_k", "min_p"].map(
    (name): KeyPair => [`sampling.${when}.${name}`, `rllm.rollout.${when}.${name}`],
  ),
);

/** Both names get the same value. The reference document does not deprecate these names, so setting them does not warn. */
export const sharedKeys: readonly KeyPair[] = [
  ...sizes,
  ...sampling,
  ["training.lr_schedule", "rllm.algorithm.lr_schedule"],
  ["training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
  ["rollout_engine.disable_thinking", "rllm.disable_thinking"],
  ["rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning"],
  ["distillation.enabled", "rllm.distill.enable"],
];

/** Forwarded in one direction: the first key sets the second, unless the second is set too. */
export const forwardedKeys: readonly KeyPair[] = [
  ["training.group_size", "rllm.rollout.n"],
  ["validation.group_size", "rllm.rollout.n_val"],
];

export const sharedRules: readonly SyncRule[] = [
  ...sharedKeys.map((pair) => sameValue(pair)),
  ...forwardedKeys.map(forwarded),
  enableTraces,
];

/** Setting the path of the trace database enables traces, unless a later layer sets `rllm.gateway.store`. */
function enableTraces(tree: Parameters<SyncRule>[0]): void {
  const store = "rllm.gateway.store";
  for (const path of ["rllm.gateway.db_path", "rllm.sdk.store.path"]) {
    const value = tree.value(path) ?? null;
    const [pathLayer, storeLayer] = [layerAt(tree, path), layerAt(tree, store)];
    // A saved configuration sets every key in one layer, so there the default path does not count as set.
    const isSet = value !== configKeys.get(path)?.default ? pathLayer >= storeLayer : pathLayer > storeLayer;
    if (value !== null && pathLayer > 0 && isSet && tree.value(store) !== "sqlite") {
      derive(tree, store, "sqlite", path, "forwarded");
    }
  }
}

/** Applies `resume_from_tinker_id`, Tinker's name for `resume_from_path` with `resume_mode=path`. */
export const resumeFromTinkerId: SyncRule = (tree) => {
  const mode = "training.resume_mode";
  const path = "training.resume_from_path";
  const id = "training.resume_from_tinker_id";
  if (!isExplicit(tree, id) || (tree.value(id) ?? null) === null) return;
  const isLater = isExplicit(tree, path) && layerAt(tree, path) >= layerAt(tree, id);
  if (isLater && warnOfConflict(tree, [id, path])) return;
  derive(tree, path, tree.value(id), id, "forwarded");
  if (!isExplicit(tree, mode)) derive(tree, mode, "path", id, "forwarded");
};
