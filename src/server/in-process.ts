/** Hone's own Tinker service without a port, for a run that names no service: the local engine behind it. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { localEngineOptions } from "../backends/local/options.ts";
import { openTinkerEngine } from "../backends/tinker/engine.ts";
import { ownStateFolder, tinkerEngineOptions } from "../backends/tinker/options.ts";
import type { Config } from "../config/schema.ts";
import { openService } from "./start-server.ts";

export async function openOwnTinkerEngine(
  config: Config,
  hooks: { logFile?: string; onStatus?: (text: string) => void },
): Promise<Engine> {
  const local = await openLocalEngine(localEngineOptions(config, hooks));
  const stateFolder = ownStateFolder(hooks.logFile, () => mkdtempSync(join(tmpdir(), "hone-tinker-")));
  const running = await openService({ engines: [{ names: [config.model.name], engine: local }], stateFolder });
  const service = { baseUrl: "http://in-process", apiKey: "tml-local" };
  const engine = await openTinkerEngine({
    ...tinkerEngineOptions(config, service, hooks.onStatus ? { onStatus: hooks.onStatus } : {}),
    fetch: async (url, init) => running.app.request(url, init),
  });
  return {
    ...engine,
    async close() {
      await engine.close();
      await running.close();
      await local.close();
    },
  };
}
