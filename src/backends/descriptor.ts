/** What is known about a backend before anything of it is loaded. */
import type { Config } from "../config/schema.ts";
import type { MediaStore } from "../images/media-store.ts";
import type { Capabilities, Engine } from "./engine.ts";

export interface EngineHooks {
  /** The engine's own log. */
  logFile?: string;
  /** For files that other programs read while the engine runs; default: a temporary folder. */
  folder?: string;
  /** Keeps the images of prompts; default: memory. */
  media?: MediaStore;
  /** Called with what the engine does before it is ready: set-up, conversion, loading. */
  onStatus?: (text: string) => void;
  /** Called with problems that the engine handles by itself, such as an inference server that it leaves out. */
  warn?: (text: string) => void;
}

/** Cheap to import: `open` loads the engine's code. */
export interface BackendDescriptor {
  /**
   * What the engine will be able to do, from the configuration alone; of a remote service, the most that it may be able to
   * do. An opened engine with other capabilities is checked again.
   */
  capabilities(config: Config): Capabilities;
  /** @throws UserError for the backend's own settings that cannot work */
  check?(config: Config): void;
  /** Whether the model runs elsewhere, so that the settings of the local engine have no effect. Absent: never. */
  isRemote?(config: Config): boolean;
  /** Whether this is the address of a state that a service of the backend holds, rather than a folder. */
  holdsState?(address: string): boolean;
  open(config: Config, hooks: EngineHooks): Promise<Engine>;
}
