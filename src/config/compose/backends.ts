/** What each backend adds to the configuration: its own keys, and rules for keys with two names. */
import type { Backend } from "../schema/about.ts";
import { verlSections } from "../schema/verl.ts";
import { verlFolder } from "../tree/shipped.ts";
import type { ConfigWarning } from "../warnings.ts";
import { forwardedKeys, sharedKeys, verlSharedKeys } from "./sync/shared-keys.ts";
import { forwardKey, type SyncTree, syncSharedKey } from "./sync/sync.ts";
import { syncVerl } from "./sync/verl.ts";

interface BackendSettings {
  /** Root sections that accept keys of the backend's own tree. */
  ownSections: readonly string[];
  /** Finds the folder of the backend's own tree. */
  ownTree?: () => string;
  /** The setting for higher precision, if the backend has one. */
  precision?: { key: string; highest: string };
  /** Synchronizes the keys that have two names. */
  sync: (tree: SyncTree, warn: (warning: ConfigWarning) => void) => void;
}

export const backendSettings: Readonly<Record<Backend, BackendSettings>> = {
  local: { ownSections: [], precision: { key: "local.dtype", highest: "float32" }, sync: syncShared },
  tinker: {
    ownSections: [],
    sync: (tree, warn) => {
      syncShared(tree, warn);
      forwardKey(tree, ["training.default_local_dir", "rllm.trainer.run_dir"], warn);
    },
  },
  verl: {
    ownSections: [...verlSections, "data"],
    ownTree: verlFolder,
    sync: (tree, warn) => {
      syncVerl(tree, warn);
      const synced = new Set(verlSharedKeys.map(([native]) => native));
      syncShared(tree, warn, (native) => synced.has(native));
    },
  },
};

/** The reference document does not deprecate these names, so setting them does not warn. */
function syncShared(
  tree: SyncTree,
  warn: (warning: ConfigWarning) => void,
  isSynced: (native: string) => boolean = () => false,
): void {
  for (const key of sharedKeys) if (!isSynced(key[0])) syncSharedKey(tree, key, { deprecated: false, warn });
  for (const key of forwardedKeys) forwardKey(tree, key, warn);
}
