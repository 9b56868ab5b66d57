/** The local engine: a Python worker on this machine. */
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities } from "../local/capabilities.ts";
import { localEngineOptions } from "../local/options.ts";

export const local: BackendDescriptor = {
  capabilities: () => capabilities,
  async open(config, hooks) {
    const { openLocalEngine } = await import("../local/engine.ts");
    return openLocalEngine(localEngineOptions(config, hooks));
  },
};
