/** The facts about a backend that are known before any of its code is loaded. */

import type { ComposedConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import type { MediaStore } from "../images/images.ts";
import type { Capabilities, Engine, Finding, OtherModel } from "./engine.ts";
import type { Rule } from "./rule.ts";

/** A configuration with the backend's own sections. */
export type ComposedTree = Pick<ComposedConfig, "config" | "tree" | "origins">;

export interface EngineHooks {
  /** The engine's own log. */
  logFile?: string;
  /** For files that other programs read while the engine runs; default: a temporary folder. */
  folder?: string;
  /** Keeps the images of prompts; default: memory. */
  media?: MediaStore;
  /** If the configuration's policy will be trained: the other models that will be opened. */
  trains?: { others: readonly OtherModel[] } | undefined;
  /** Called with what the engine does before it is ready: set-up, conversion, loading. */
  onStatus?: (text: string) => void;
  /** Called with problems that the engine handles itself, such as an inference server that is excluded. */
  warn?: (text: string) => void;
}

/** Cheap to import: `open` loads the engine's code. */
export interface BackendDescriptor {
  /**
   * What the engine will be able to do, from the configuration alone; of a remote service, the most that it may be able to
   * do. An opened engine with other capabilities is checked again.
   */
  capabilities(config: Config): Capabilities;
  /** What settings require on this backend, beyond its capabilities. */
  rules?: readonly Rule[];
  /** @throws UserError for the backend's own settings that cannot work, and no rule says so */
  check?(composed: ComposedTree): void;
  /** Why a setting of the backend's own sections has no effect; undefined if it has. Absent: there are no such sections. */
  reasonUnused?(key: string, tree: ComposedTree["tree"]): string | undefined;
  /** For `hone doctor`: checks before anything is opened. */
  examine?(config: ComposedTree): Promise<Finding[]>;
  /** Whether the model runs elsewhere, so that the settings of the local engine have no effect. Absent: never. */
  isRemote?(config: Config): boolean;
  /** Whether this is the address of a state that a service of the backend stores, not a folder. */
  holdsState?(address: string): boolean;
  open(composed: ComposedTree, hooks: EngineHooks): Promise<Engine>;
}
