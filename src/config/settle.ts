/** Makes a composed tree consistent: older key names, and keys that have two names. */
import { UserError } from "../errors.ts";
import { select } from "./hydra/index.ts";
import { type MapNode, type Node, plain } from "./node.ts";
import { layerOf, type Origin } from "./origin.ts";
import type { Backend } from "./schema/about.ts";
import { forwardedKeys, sharedKeys, verlSharedKeys } from "./sync/shared-keys.ts";
import { forwardKey, isExplicit, type SyncOptions, type SyncTree, syncSharedKey } from "./sync/sync.ts";
import { syncVerl } from "./sync/verl.ts";
import { nodeOf, putNode } from "./tree.ts";
import type { ConfigWarning } from "./warnings.ts";

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
  if (backend === "verl") syncVerl(view, { deprecateNative: () => true, warn });
  // Scripts work with every backend, and most use only these names.
  const deprecateNative = ({ kind }: Origin) => backend === "tinker" && kind !== "script";
  const options: SyncOptions = { deprecateNative, warn };
  // On verl, `data` belongs to verl, and syncVerl has already processed it.
  const syncedByVerl = new Set(backend === "verl" ? verlSharedKeys.map(([native]) => native) : []);
  for (const key of sharedKeys) if (!syncedByVerl.has(key[0])) syncSharedKey(view, key, options);
  for (const key of forwardedKeys) forwardKey(view, key, options);
  if (backend === "tinker") forwardKey(view, ["training.default_local_dir", "rllm.trainer.run_dir"], options);
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

/** Applies `resume_from_tinker_id`, the older name of `resume_from_path`. */
function settleResume(tree: SyncTree, warn: (warning: ConfigWarning) => void): void {
  const names = ["training.resume_mode", "training.resume_from_path", "training.resume_from_tinker_id"] as const;
  const [mode, path, id] = names;
  if (!isExplicit(tree, id) || (tree.value(id) ?? null) === null) return;
  const origin = tree.node(id)!.origin;
  const from = (value: unknown): Node => ({
    kind: "value",
    value,
    origin: { kind: "synced", how: "forwarded", from: id, of: origin },
  });
  const differs = isExplicit(tree, path) && tree.value(path) !== tree.value(id);
  if (differs && layerOf(tree.node(path)!.origin) >= layerOf(origin)) {
    warn({ category: "conflict", paths: [id, path], text: `${id} and ${path} differ; ${path} wins` });
    return;
  }
  warn({
    category: "deprecated_native",
    paths: [id, path],
    text: `${id} is the older name of ${path}; set ${path} and ${mode}=path`,
  });
  tree.put(path, from(tree.value(id)));
  if (!isExplicit(tree, mode)) tree.put(mode, from("path"));
}
