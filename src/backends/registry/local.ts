/** The local engine: a Python worker on this machine, which an inference server may sample for. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities, capabilitiesWithServer } from "../local/capabilities.ts";
import { localEngineOptions, serverUrl } from "../local/options.ts";

export const local: BackendDescriptor = {
  capabilities: (config) => (serverUrl(config) === undefined ? capabilities : capabilitiesWithServer),
  async open(config, { folder, ...hooks }) {
    const { openLocalEngine } = await import("../local/engine.ts");
    const engine = await openLocalEngine(localEngineOptions(config, hooks));
    const url = serverUrl(config);
    if (url === undefined) return engine;
    const [{ withServer }, { openTokenizer }] = await Promise.all([
      import("../servers/with-server.ts"),
      import("../../chat/tokens/tokenizer.ts"),
    ]);
    return withServer(engine, {
      url,
      folder: folder === undefined ? mkdtempSync(join(tmpdir(), "hone-adapters-")) : join(folder, "adapters"),
      encode: (text) => openTokenizer(engine.model.directory).encode(text),
    });
  },
};
