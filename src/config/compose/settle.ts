/** Makes a composed tree consistent: older key names, and keys that have two names. */
import { UserError } from "../../errors.ts";
import { configKeys } from "../describe.ts";
import { select } from "../hydra/resolve.ts";
import type { Backend } from "../schema/about.ts";
import { type MapNode, type Node, plain } from "../tree/node.ts";
import type { Origin } from "../tree/origin.ts";
import { nodeOf, putNode } from "../tree/tree.ts";
import type { ConfigWarning } from "../warnings.ts";
import { backendSettings } from "./backends.ts";
import { derive, isExplicit, layerAt, type SyncTree } from "./sync/sync.ts";

/**
 * Changes `tree`. References are kept: a key whose value comes from a key with a reference gets a reference to that key.
 *
 * @param deleted the keys deleted by overrides `~key=value`, with the origins of those overrides
 * @returns the warnings, in the order in which the keys were processed
 */
export function settle(
  tree: MapNode,
  backend: Backend,
  deleted: ReadonlyMap<string, Origin>,
  resolvers: Resolvers = {},
): ConfigWarning[] {
  const warnings: ConfigWarning[] = [];
  const view = syncTree(tree, deleted, resolvers);
  const warn = (warning: ConfigWarning) => {
    warnings.push(warning);
  };
  settleResume(view, warn);
  backendSettings[backend].sync(view, warn);
  enableTraces(view);
  return warnings;
}

type Resolvers = Parameters<typeof select>[2];

function syncTree(tree: MapNode, deleted: ReadonlyMap<string, Origin>, resolvers: Resolvers): SyncTree {
  return {
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
  };
}

function refers(node: Node): boolean {
  if (node.kind === "value") return typeof node.value === "string" && node.value.includes("${");
  return node.kind === "list" ? node.items.some(refers) : node.entries.some(({ node: child }) => refers(child));
}

/** Setting the path of the trace database enables traces, unless a later layer sets `rllm.gateway.store`. */
function enableTraces(tree: SyncTree): void {
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
function settleResume(tree: SyncTree, warn: (warning: ConfigWarning) => void): void {
  const mode = "training.resume_mode";
  const path = "training.resume_from_path";
  const id = "training.resume_from_tinker_id";
  if (!isExplicit(tree, id) || (tree.value(id) ?? null) === null) return;
  const differs = isExplicit(tree, path) && tree.value(path) !== tree.value(id);
  if (differs && layerAt(tree, path) >= layerAt(tree, id)) {
    warn({ category: "conflict", paths: [id, path], text: `${id} and ${path} differ; ${path} wins` });
    return;
  }
  derive(tree, path, tree.value(id), id, "forwarded");
  if (!isExplicit(tree, mode)) derive(tree, mode, "path", id, "forwarded");
}
