/** The local engine: a Python worker on this machine, which an inference server may sample for. */
import { join } from "node:path";
import { temporaryFolder } from "../../files/temporary-names.ts";
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities, capabilitiesWith } from "../local/capabilities.ts";
import { localEngineOptions, serverKey, serversOf } from "../local/options.ts";

export const local: BackendDescriptor = {
  capabilities(config) {
    const servers = serversOf(config);
    return servers === undefined ? capabilities : capabilitiesWith(servers.kind);
  },
  check: (config) => void (serversOf(config) && serverKey(config)),
  async open(config, { folder, warn, ...hooks }) {
    const { openLocalEngine } = await import("../local/engine.ts");
    const engine = await openLocalEngine(localEngineOptions(config, hooks));
    const servers = serversOf(config);
    if (servers === undefined) return engine;
    const [{ withServer }, { openTokenizer }] = await Promise.all([
      import("../servers/with-server.ts"),
      import("../../chat/tokens/tokenizer.ts"),
    ]);
    return withServer(engine, {
      ...servers,
      apiKey: serverKey(config),
      onNote: warn,
      folder: folder === undefined ? temporaryFolder("hone-published-") : join(folder, "published"),
      encode: (text) => openTokenizer(engine.model.directory).encode(text),
    });
  },
};
