/** Training through a service with Tinker's protocol, or through Hone's own in this process. */
import { isTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import type { BackendDescriptor } from "../descriptor.ts";
import { honeCapabilities } from "../tinker/capabilities.ts";
import { namesService, tinkerService } from "../tinker/service.ts";

export const tinker: BackendDescriptor = {
  // A service says only after it was reached whether it is Hone's, which can return raw log-probabilities.
  capabilities: () => honeCapabilities,
  check(config) {
    tinkerService(config);
  },
  isRemote: (config) => namesService(config),
  holdsState: isTinkerPath,
  async open({ config }, hooks) {
    const service = tinkerService(config);
    if (service === null) {
      const { openOwnTinkerEngine } = await import("../../server/in-process.ts");
      return openOwnTinkerEngine(config, hooks);
    }
    const [{ openTinkerEngine }, { tinkerEngineOptions }] = await Promise.all([
      import("../tinker/engine.ts"),
      import("../tinker/options.ts"),
    ]);
    return openTinkerEngine(tinkerEngineOptions(config, service, hooks));
  },
};
