/** Training through a service with Tinker's protocol, or through Hone's own in this process. */
import { isTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import type { BackendDescriptor } from "../descriptor.ts";
import { honeCapabilities } from "../tinker/capabilities.ts";
import { namesService, tinkerService } from "../tinker/service.ts";

export const tinker: BackendDescriptor = {
  // Only Hone's own service can return raw log-probabilities, and whether it is one is known only after a request.
  capabilities: () => honeCapabilities,
  check({ config }) {
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
