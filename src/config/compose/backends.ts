/** What each backend adds to the configuration: its own keys, and rules for keys with two names. */
import type { Backend } from "../schema/about.ts";
import type { Origin } from "../tree/origin.ts";
import { verlFolder } from "../tree/shipped.ts";
import { resumeFromTinkerId, sharedRules } from "./sync/shared-keys.ts";
import { forwarded, type SyncRule } from "./sync/sync.ts";
import { verlRules, verlSections, withoutVerlDefaults } from "./sync/verl-keys.ts";

interface BackendSettings {
  /** Root sections that accept keys of the backend's own tree. */
  ownSections: readonly string[];
  /** Finds the folder of the backend's own tree. */
  ownTree?: () => string;
  /** Leaves out of a tree for a file what the backend's own tree gives again. */
  withoutOwnDefaults?: (tree: Record<string, unknown>, origins: ReadonlyMap<string, Origin>) => Record<string, unknown>;
  /** The setting for higher precision, if the backend has one. */
  precision?: { key: string; highest: string };
  /** Rules about keys that set each other, in the order in which they are applied. */
  rules: readonly SyncRule[];
}

export const backendSettings: Readonly<Record<Backend, BackendSettings>> = {
  local: {
    ownSections: [],
    precision: { key: "local.dtype", highest: "float32" },
    rules: [resumeFromTinkerId, ...sharedRules],
  },
  tinker: {
    ownSections: [],
    rules: [resumeFromTinkerId, ...sharedRules, forwarded(["training.default_local_dir", "rllm.trainer.run_dir"])],
  },
  verl: {
    ownSections: [...verlSections, "data"],
    ownTree: verlFolder,
    withoutOwnDefaults: withoutVerlDefaults,
    rules: [resumeFromTinkerId, ...verlRules, ...sharedRules],
  },
};
