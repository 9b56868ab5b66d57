/** The local engine: a Python worker on this machine. */
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities } from "./capabilities.ts";
import { localEngineOptions } from "./options.ts";

export const local: BackendDescriptor = {
  capabilities: () => capabilities,
  async open(config, hooks) {
    const { openLocalEngine } = await import("./engine.ts");
    return openLocalEngine(localEngineOptions(config, hooks));
  },
};
