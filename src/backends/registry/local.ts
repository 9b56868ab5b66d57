/** The local engine: a Python worker on this machine, which an inference server may sample for. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities, capabilitiesWithServer } from "../local/capabilities.ts";
import { localEngineOptions, serverKey, serverUrls } from "../local/options.ts";

export const local: BackendDescriptor = {
  capabilities: (config) => (serverUrls(config).length === 0 ? capabilities : capabilitiesWithServer),
  check: (config) => void (serverUrls(config).length > 0 && serverKey(config)),
  async open(config, { folder, warn, ...hooks }) {
    const { openLocalEngine } = await import("../local/engine.ts");
    const engine = await openLocalEngine(localEngineOptions(config, hooks));
    const urls = serverUrls(config);
    if (urls.length === 0) return engine;
    const [{ withServer }, { openTokenizer }] = await Promise.all([
      import("../servers/with-server.ts"),
      import("../../chat/tokens/tokenizer.ts"),
    ]);
    return withServer(engine, {
      urls,
      apiKey: serverKey(config),
      onNote: warn,
      folder: folder === undefined ? mkdtempSync(join(tmpdir(), "hone-adapters-")) : join(folder, "adapters"),
      encode: (text) => openTokenizer(engine.model.directory).encode(text),
    });
  },
};
