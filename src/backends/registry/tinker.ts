/** Training through a service with Tinker's protocol, or through Hone's own in this process. */
import { honeCapabilities } from "../../tinker-protocol/handshake.ts";
import { isTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import type { BackendDescriptor } from "../descriptor.ts";
import { engineCapabilities } from "../tinker/capabilities.ts";
import { namesService, tinkerEngineOptions, tinkerService } from "../tinker/service.ts";

export const tinker: BackendDescriptor = {
  // What an ordinary service lacks is known only after a request.
  capabilities: (config) => engineCapabilities(honeCapabilities, { otherModels: namesService(config) }),
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
    const { openTinkerEngine } = await import("../tinker/engine.ts");
    return openTinkerEngine(tinkerEngineOptions(config, service, hooks));
  },
};
